# SPDX-License-Identifier: Apache-2.0
"""Who makes a pipeline with whom: by speed, by memory, by links; and who keeps whose copy."""

from __future__ import annotations

import pytest

from gangline.planning.pipelines.layout import best_layout
from gangline.planning.pipelines.memory import stage_bytes
from gangline.planning.pipelines.single import Asked, solve
from gangline.spec.errors import UnsupportedError
from gangline.spec.pipelines import Layer, Links, Machine, Pace
from gangline.spec.profile import Link

COUNT = 8
LAYERS = [
    Layer(
        name=f"block{index}",
        parameter_bytes=1e6,
        state_bytes=3e6,
        saved_bytes=1e5,
        input_bytes=1e4,
        output_bytes=1e4,
    )
    for index in range(COUNT)
]


def machine(name: str, speed: float = 1.0, memory: float | None = None) -> Machine:
    return Machine(
        name=name,
        forward=(Pace(fixed_s=1e-4 / speed, sample_s=1e-3 / speed),) * COUNT,
        backward=(Pace(fixed_s=2e-4 / speed, sample_s=2e-3 / speed),) * COUNT,
        memory_bytes=memory,
    )


def test_machines_that_hold_the_model_stay_alone_with_shares_by_speed() -> None:
    layout, _ = best_layout(LAYERS, [machine("a"), machine("b", 3.0)], 32)
    shares = {one.machines: one.share for one in layout.pipelines}
    assert shares == {("a",): 8, ("b",): 24}
    assert layout.copies == ()  # each has everything


def test_two_small_machines_make_a_pipeline_beside_a_large_one() -> None:
    small = 18e6  # 24 MB of states do not fit
    machines = [machine("a", 1.0, small), machine("b", 2.0, small), machine("c", 3.0)]
    layout, solutions = best_layout(LAYERS, machines, 32)
    over = {frozenset(one.machines): one for one in layout.pipelines}
    assert set(over) == {frozenset("ab"), frozenset("c")}
    assert sum(one.share for one in layout.pipelines) == 32
    sizes = {s.machine: s.stop - s.start for s in over[frozenset("ab")].stages}
    assert sizes["b"] > sizes["a"]
    assert "beside c alone" in layout.describe() or "c alone, beside" in layout.describe()
    for pipeline, solution in zip(layout.pipelines, solutions, strict=True):
        for number, stage in enumerate(pipeline.stages):
            behind = len(pipeline.stages) - 1 - number
            needed = stage_bytes(LAYERS[stage.start : stage.stop], solution.way, behind=behind)
            assert stage.machine == "c" or needed <= small


def test_a_slow_link_is_not_crossed_by_activations_where_there_is_a_choice() -> None:
    slow = Link(latency_s=0.05, bytes_per_s=1e6)
    machines = [machine(name, 1.0, 18e6) for name in "abcd"]
    pairs = {f"{x} {y}": slow for x in "ab" for y in "cd"}
    layout, _ = best_layout(LAYERS, machines, 64, links=Links(pairs=pairs))
    for pipeline in layout.pipelines:
        assert set(pipeline.machines) <= set("ab") or set(pipeline.machines) <= set("cd")


def test_a_share_that_does_not_fit_at_once_goes_in_several_passes() -> None:
    # 24 MB of states, and 0.8 MB for each of the 32 samples.
    layout, (solution,) = best_layout(LAYERS, [machine("a", 1.0, 30e6)], 32)
    assert solution.way.micro_batches > 1
    assert stage_bytes(LAYERS, solution.way, behind=0) <= 30e6
    assert not solution.way.recompute
    assert layout.pipelines[0].share == 32


def test_activations_are_computed_again_only_where_they_do_not_fit() -> None:
    tight = [machine("a", 1.0, 16.5e6), machine("b", 1.0, 16.5e6)]
    asked = Asked(schedule="gpipe", micro_batches=8)
    solution = solve(LAYERS, tight, 64, asked)
    assert solution is not None
    assert solution.way.recompute
    roomy = solve(LAYERS, [machine("a"), machine("b")], 64, asked)
    assert roomy is not None
    assert not roomy.way.recompute


def test_more_micro_batches_where_there_are_more_stages() -> None:
    alone = solve(LAYERS, [machine("a")], 32, Asked(stages=1))
    many = solve(LAYERS, [machine(n) for n in "abcd"], 32, Asked(stages=4))
    assert alone is not None
    assert many is not None
    assert alone.way.micro_batches == 1
    assert many.way.micro_batches > 4
    assert many.step_s < alone.step_s / 2


def test_every_layer_of_a_lone_pipeline_has_a_copy_elsewhere_where_there_is_room() -> None:
    machines = [machine("a", 1.0), machine("b", 1.0, 50e6)]
    layout, _ = best_layout(LAYERS, machines, 16, asked=Asked(stages=2))
    (pipeline,) = layout.pipelines
    holder = {i: s.machine for s in pipeline.stages for i in range(s.start, s.stop)}
    copied = {i: c.machine for c in layout.copies for i in range(c.start, c.stop)}
    assert set(copied) == set(range(COUNT))
    assert all(copied[index] != holder[index] for index in copied)
    tight = [machine("a", 1.0, 18e6), machine("b", 1.0, 18e6)]
    cramped, _ = best_layout(LAYERS, tight, 16)
    assert sum(one.stop - one.start for one in cramped.copies) < COUNT


def test_what_fits_nowhere_is_refused_with_numbers() -> None:
    machines = [machine("a", 1.0, 5e6), machine("b", 1.0, 5e6)]
    with pytest.raises(UnsupportedError, match=r"24\.0 MB .* a 5\.0 MB, b 5\.0 MB"):
        best_layout(LAYERS, machines, 8)


def test_many_machines_are_parted_too() -> None:
    machines = [machine(f"m{index}", 1.0, 18e6) for index in range(8)]
    layout, _ = best_layout(LAYERS, machines, 64)
    assert len(layout.machines) == 8
    assert all(len(one.stages) >= 2 for one in layout.pipelines)


def test_who_would_only_slow_the_others_is_left_out_unless_everybody_must_take_part() -> None:
    machines = [machine("a"), machine("b", 1e-3)]
    layout, _ = best_layout(LAYERS, machines, 8)
    assert layout.machines == ("a",)
    together, _ = best_layout(LAYERS, machines, 8, everybody=True)
    assert set(together.machines) == {"a", "b"}
    assert together.step_s > layout.step_s
