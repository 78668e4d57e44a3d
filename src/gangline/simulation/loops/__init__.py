# SPDX-License-Identifier: Apache-2.0
"""Loops in virtual time: what each way of handing out their items would have taken."""

from gangline.simulation.loops.crowd import Crowd as Crowd
from gangline.simulation.loops.crowd import Overheads as Overheads
from gangline.simulation.loops.run import LoopResult as LoopResult
from gangline.simulation.loops.run import run_loop as run_loop
from gangline.simulation.loops.sources import FlatSource as FlatSource
from gangline.simulation.loops.sources import TwoLevelSource as TwoLevelSource
from gangline.simulation.loops.workloads import WORKLOADS as WORKLOADS
from gangline.simulation.loops.workloads import make_workload as make_workload
