# SPDX-License-Identifier: Apache-2.0
"""Loops in virtual time: what each way of handing out their items would have taken."""

from gangline.simulation.loops.comparison import Compared as Compared
from gangline.simulation.loops.comparison import Program as Program
from gangline.simulation.loops.comparison import run_automated as run_automated
from gangline.simulation.loops.comparison import run_fixed as run_fixed
from gangline.simulation.loops.comparison import run_two_levels as run_two_levels
from gangline.simulation.loops.comparison import summed_up as summed_up
from gangline.simulation.loops.crowd import Crowd as Crowd
from gangline.simulation.loops.crowd import Overheads as Overheads
from gangline.simulation.loops.recorded import estimated_speeds as estimated_speeds
from gangline.simulation.loops.recorded import read_records as read_records
from gangline.simulation.loops.recorded import recorded_costs as recorded_costs
from gangline.simulation.loops.run import ChunkRecord as ChunkRecord
from gangline.simulation.loops.run import LoopResult as LoopResult
from gangline.simulation.loops.run import run_loop as run_loop
from gangline.simulation.loops.sources import FlatSource as FlatSource
from gangline.simulation.loops.sources import TwoLevelSource as TwoLevelSource
from gangline.simulation.loops.workloads import WORKLOADS as WORKLOADS
from gangline.simulation.loops.workloads import make_workload as make_workload
