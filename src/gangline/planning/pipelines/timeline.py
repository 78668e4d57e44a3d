# SPDX-License-Identifier: Apache-2.0
"""When each stage does what: a schedule played through with the seconds of stages and links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.planning.pipelines.schedules import BACKWARD, FORWARD, UPDATE, Task, tasks_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class StageTime(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage takes for one micro-batch, and its message to the next stage in each direction."""

    forward_s: float
    backward_s: float
    update_s: float = 0.0
    message_s: float = 0.0


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a stage has done, and when."""

    stage: int
    task: Task
    begin_s: float
    end_s: float


def play(schedule: str, times: Sequence[StageTime], *, micro_batches: int) -> list[Done]:
    """All tasks of all stages, in the order of their beginning. Messages go beside the computing."""
    count = len(times)
    left = [
        tasks_of(schedule, stage=stage, stages=count, micro_batches=micro_batches)[::-1]
        for stage in range(count)
    ]
    free_s = [0.0] * count
    link_s: dict[tuple[int, str], float] = {}
    arrived_s: dict[tuple[int, Task], float] = {}
    done: list[Done] = []
    while any(left):
        for stage in range(count):
            while left[stage] and (ready := _ready(stage, left[stage][-1], count, arrived_s)) >= 0:
                task = left[stage].pop()
                begin = max(free_s[stage], ready)
                end = begin + _seconds(times[stage], task)
                free_s[stage] = end
                done.append(Done(stage=stage, task=task, begin_s=begin, end_s=end))
                _send(stage, task, end, times, link_s, arrived_s)
    return sorted(done, key=lambda one: (one.begin_s, one.stage))


def makespan_s(schedule: str, times: Sequence[StageTime], *, micro_batches: int) -> float:
    """When the last stage is done with everything."""
    return max(one.end_s for one in play(schedule, times, micro_batches=micro_batches))


def high_water(done: Sequence[Done], stage: int) -> int:
    """How many micro-batches a stage had done forward and not backward, at most."""
    most = now = 0
    for one in sorted((d for d in done if d.stage == stage), key=lambda d: d.begin_s):
        now += {FORWARD: 1, BACKWARD: -1, UPDATE: 0}[one.task.kind]
        most = max(most, now)
    return most


def _ready(stage: int, task: Task, count: int, arrived_s: dict[tuple[int, Task], float]) -> float:
    """When what a task needs from another stage is there; -1: it is not on its way yet."""
    if task.kind == UPDATE:
        return 0.0
    is_first = stage == (0 if task.kind == FORWARD else count - 1)
    return 0.0 if is_first else arrived_s.get((stage, task), -1.0)


def _seconds(times: StageTime, task: Task) -> float:
    return {FORWARD: times.forward_s, BACKWARD: times.backward_s, UPDATE: times.update_s}[task.kind]


def _send(
    stage: int,
    task: Task,
    end_s: float,
    times: Sequence[StageTime],
    link_s: dict[tuple[int, str], float],
    arrived_s: dict[tuple[int, Task], float],
) -> None:
    """Each direction of a link carries one message after the other."""
    target = stage + 1 if task.kind == FORWARD else stage - 1
    if task.kind == UPDATE or not 0 <= target < len(times):
        return
    lane = (min(stage, target), task.kind)
    begin = max(end_s, link_s.get(lane, 0.0))
    link_s[lane] = arrived_s[target, task] = begin + times[lane[0]].message_s
