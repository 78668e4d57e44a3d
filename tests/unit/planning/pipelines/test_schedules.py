# SPDX-License-Identifier: Apache-2.0
"""Schedules, by what they are: everything once, in an order that can be kept, in so much memory."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.planning.pipelines.memory import Way, in_flight
from gangline.planning.pipelines.schedules import BACKWARD, FORWARD, UPDATE, Task, tasks_of
from gangline.planning.pipelines.timeline import StageTime, high_water, makespan_s, play
from gangline.spec.errors import UsageError
from gangline.spec.pipelines import SCHEDULES

seconds = st.integers(0, 5).map(float)
times = st.lists(
    st.builds(
        StageTime,
        forward_s=st.integers(1, 5).map(float),
        backward_s=st.integers(1, 5).map(float),
        update_s=seconds,
        message_s=seconds,
    ),
    min_size=1,
    max_size=5,
)


@given(st.sampled_from(SCHEDULES), times, st.integers(1, 8))
def test_everything_is_done_once_after_what_it_needs(
    schedule: str, stages: list[StageTime], count: int
) -> None:
    done = play(schedule, stages, micro_batches=count)
    ends = {(one.stage, one.task): one.end_s for one in done}
    assert len(ends) == len(done)
    updates = count if schedule == "pipedream" else 1
    assert len(done) == len(stages) * (2 * count + updates)
    for one in done:
        kind, number = one.task
        if kind == FORWARD and one.stage:
            sent = ends[one.stage - 1, one.task] + stages[one.stage - 1].message_s
            assert one.begin_s >= sent
        if kind == BACKWARD:
            assert one.begin_s >= ends[one.stage, Task(FORWARD, number)]
            if one.stage + 1 < len(stages):
                assert one.begin_s >= ends[one.stage + 1, one.task] + stages[one.stage].message_s
        if kind == UPDATE:
            needed = range(count) if number < 0 else [number]
            assert all(one.begin_s >= ends[one.stage, Task(BACKWARD, n)] for n in needed)
    for stage in range(len(stages)):
        own = sorted((d for d in done if d.stage == stage), key=lambda d: (d.begin_s, d.end_s))
        assert all(a.end_s <= b.begin_s for a, b in itertools.pairwise(own))


@given(st.sampled_from(SCHEDULES), times, st.integers(1, 8))
def test_no_stage_has_more_in_flight_than_its_memory_was_reckoned_for(
    schedule: str, stages: list[StageTime], count: int
) -> None:
    done = play(schedule, stages, micro_batches=count)
    way = Way(schedule=schedule, micro_batches=count)
    for stage in range(len(stages)):
        assert high_water(done, stage) == in_flight(way, behind=len(stages) - 1 - stage)


def test_equal_stages_take_what_the_textbook_says() -> None:
    stages = [StageTime(forward_s=1.0, backward_s=2.0)] * 4
    for schedule in ("gpipe", "1f1b"):
        assert makespan_s(schedule, stages, micro_batches=8) == (8 + 4 - 1) * 3


def test_pipedream_updates_by_what_went_forward_before() -> None:
    order = tasks_of("pipedream", stage=0, stages=2, micro_batches=3)
    assert order == [
        Task(FORWARD, 0),
        Task(FORWARD, 1),
        Task(BACKWARD, 0),
        Task(UPDATE, 0),
        Task(FORWARD, 2),
        Task(BACKWARD, 1),
        Task(UPDATE, 1),
        Task(BACKWARD, 2),
        Task(UPDATE, 2),
    ]


@pytest.mark.parametrize(
    ("schedule", "stage", "words"), [("zigzag", 0, "no schedule 'zigzag'"), ("1f1b", 2, "stage 2")]
)
def test_what_is_not_there_is_refused(schedule: str, stage: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tasks_of(schedule, stage=stage, stages=2, micro_batches=1)
