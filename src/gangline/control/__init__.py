# SPDX-License-Identifier: Apache-2.0
"""Decisions during the run: one pure function, `decide(state, event, now)`, and what it needs.

The coordinator and the simulator both call it and carry out the commands that it returns. No clock,
environment, file, thread, logger or global random in here.
"""

from gangline.control.commands import Command as Command
from gangline.control.commands import KeepPlan as KeepPlan
from gangline.control.commands import LowerRate as LowerRate
from gangline.control.commands import PublishView as PublishView
from gangline.control.commands import Say as Say
from gangline.control.commands import TakeBack as TakeBack
from gangline.control.decide import decide as decide
from gangline.control.inputs import ControlEvent as ControlEvent
from gangline.control.inputs import ExclusionAsked as ExclusionAsked
from gangline.control.inputs import MetricsMeasured as MetricsMeasured
from gangline.control.inputs import PartChanged as PartChanged
from gangline.control.inputs import ReturnAsked as ReturnAsked
from gangline.control.inputs import SpareMeasured as SpareMeasured
from gangline.control.inputs import StepMeasured as StepMeasured
from gangline.control.inputs import StructureAsked as StructureAsked
from gangline.control.inputs import WorkersJoined as WorkersJoined
from gangline.control.inputs import WorkersLeft as WorkersLeft
from gangline.control.inputs import WorkersLost as WorkersLost
from gangline.control.options import ControlOptions as ControlOptions
from gangline.control.state import ControlState as ControlState
