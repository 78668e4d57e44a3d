# SPDX-License-Identifier: Apache-2.0
"""What follows from where workers stand: who sends layers to whom, and who sums what with whom."""

from __future__ import annotations

import pytest

from gangline.pipelining.standing import (
    Move,
    Standing,
    Tie,
    check_alike,
    furthest,
    moves_for,
    ties_of,
)
from gangline.spec.errors import LaunchError, MismatchError
from gangline.spec.pipelines import Copy, Layout, Machine, Pipeline, Stage

NAMES = ["stem", "block", "block2", "head"]


def standing(worker: int, held: list[int], position: int = 3, asked: int = 0) -> Standing:
    return Standing(
        worker=worker,
        address=None,
        asked=asked,
        position=position,
        is_prepared=True,
        loss=0.5,
        held=held,
        machine=Machine(name=f"w{worker}", forward=(), backward=()),
    )


def pipeline(*stages: tuple[str, int, int]) -> Pipeline:
    return Pipeline(
        stages=tuple(Stage(machine=m, start=a, stop=b) for m, a, b in stages),
        share=4,
        micro_batches=2,
    )


def test_layers_come_from_the_first_who_has_them() -> None:
    layout = Layout(
        pipelines=(pipeline(("w2", 0, 3), ("w0", 3, 4)),),
        copies=(Copy(machine="w0", start=0, stop=1),),
    )
    moves = moves_for(layout, [standing(0, [0, 1]), standing(2, [1, 2, 3])], NAMES)
    assert moves == [Move(0, 1, (0,)), Move(1, 0, (3,))]


def test_layers_that_nobody_has_are_named() -> None:
    layout = Layout(pipelines=(pipeline(("w0", 0, 4)),))
    with pytest.raises(LaunchError, match=r"the layers 'block', 'head' are lost"):
        moves_for(layout, [standing(0, [0, 2])], NAMES)


def test_pipelines_with_unlike_cuts_sum_layer_by_layer() -> None:
    layout = Layout(
        pipelines=(pipeline(("a", 0, 2), ("b", 2, 4)), pipeline(("c", 0, 3), ("d", 3, 4)))
    )
    assert ties_of(layout, 4) == [
        Tie((0, 1), ("a", "c"), ()),
        Tie((2,), ("b", "c"), ()),
        Tie((3,), ("b", "d"), ()),
    ]


def test_a_copy_takes_part_and_who_is_alone_needs_nobody() -> None:
    layout = Layout(
        pipelines=(pipeline(("a", 0, 2), ("b", 2, 4)),),
        copies=(Copy(machine="b", start=0, stop=2),),
    )
    assert ties_of(layout, 4) == [Tie((0, 1), ("a",), ("b",))]


def test_the_step_that_somebody_made_counts() -> None:
    assert furthest([standing(0, []), standing(1, [], position=4), standing(2, [])]).worker == 1


def test_workers_that_train_something_else_are_named() -> None:
    with pytest.raises(MismatchError, match="workers 0, 2, and unlike them 1"):
        check_alike([standing(0, []), standing(1, [], asked=1), standing(2, [])])
