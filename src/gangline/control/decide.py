# SPDX-License-Identifier: Apache-2.0
"""The one entry of the control function: an event in, a new state and commands out.

    state = ControlState.begin(ControlOptions(global_batch=256))
    state, commands = decide(state, WorkersJoined(workers=(0, 1, 2, 3)), now)
    state, commands = decide(state, StepMeasured(step=0, view=0, ...), now)

Pure: the same events at the same times give the same commands, whoever drives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from gangline.control.inputs import (
    ExclusionAsked,
    MetricsMeasured,
    PartChanged,
    ReturnAsked,
    SpareMeasured,
    StepMeasured,
    StructureAsked,
    WorkersJoined,
    WorkersLeft,
    WorkersLost,
)
from gangline.control.members.membership import change_part, join, leave, lose
from gangline.control.shares.measuring import note_metrics, note_step
from gangline.control.stragglers.manager import note_spare
from gangline.control.stragglers.ordered import ask_back, keep_out
from gangline.control.structure.structures import ask_structure, question_structure

if TYPE_CHECKING:
    from gangline.control.commands import Command
    from gangline.control.inputs import ControlEvent
    from gangline.control.state import ControlState


def decide(
    state: ControlState, event: ControlEvent, now: float
) -> tuple[ControlState, list[Command]]:
    """What follows from `event`, which happened at the time `now` (seconds, any clock)."""
    match event:
        case StepMeasured():
            return question_structure(*note_step(state, event, now), event=event, now=now)
        case SpareMeasured():
            return note_spare(state, event, now)
        case ExclusionAsked():
            return keep_out(state, event, now)
        case ReturnAsked():
            return ask_back(state, event, now)
        case WorkersJoined():
            return join(state, event, now)
        case WorkersLost():
            return lose(state, event, now)
        case WorkersLeft():
            return leave(state, event, now)
        case StructureAsked():
            return ask_structure(state, event, now)
        case MetricsMeasured():
            return note_metrics(state, event), []
        case PartChanged():
            return change_part(state, event, now)
        case _:
            assert_never(event)
