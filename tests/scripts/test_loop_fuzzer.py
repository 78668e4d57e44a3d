# SPDX-License-Identifier: Apache-2.0
"""Random training loops agree with plain torch, or are refused by an error that names the cause."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.append(str(Path(__file__).parent))

import loop_fuzzer
from loop_fuzzer import judge, try_all, warm_up, work
from loop_programs import Loss, Op, Program, draw, is_sensible, shrink, text_of

from cases import quick_of
from gangline.protocol.launch import Launch
from gangline.worker.gradients.exchange import Gradients

if TYPE_CHECKING:
    from gangline.testing import WorkerPool

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
"""Torch warns of loops that step a scheduler before an optimizer; random ones do."""

BLOCKS, PER_BLOCK = 5, 10


@pytest.mark.parametrize("block", quick_of(range(BLOCKS), quick=[0]))
def test_random_loops_agree_with_plain_torch_or_are_refused(
    block: int, worker_pool: WorkerPool
) -> None:
    tally = try_all(range(block * PER_BLOCK, (block + 1) * PER_BLOCK), worker_pool)
    assert not tally.failures, "\n\n".join(text for _, text in tally.failures)
    assert tally.verdicts["agreed"] > 0.6 * PER_BLOCK, f"too few say anything: {tally}"


BOTH = (Op("forward", 0), Op("forward", 1), Op("backward", 0), Op("backward", 1))
TWO_LOSSES = Program(0, samples=19, epochs=2, losses=(Loss((0,)), Loss((0,), form="sometimes")))
TWO_MODELS = Program(
    0,
    samples=24,
    epochs=2,
    models=2,
    optimizers=(("SGD", (0,)), ("Adam", (1,))),
    losses=(Loss((0,)), Loss((1,))),
)
FOUND = {
    "a pass inside of no_sync after one that was exchanged": replace(
        TWO_LOSSES,
        body=(Op("zero"), *BOTH[:3], Op("backward", 1, how="no_sync on even updates"), Op("step")),
    ),
    "a step behind the last fetch, of a pass inside of no_sync": replace(
        TWO_MODELS,
        samples=12,
        batch=5,
        epochs=1,
        ahead=1,
        body=(
            Op("forward", 1),
            Op("backward", 1, how="no_sync on even updates"),
            Op("step", 0, "odd"),
            Op("fetch"),
            Op("step", 1),
        ),
    ),
    "two passes for each batch of a window that is fetched first": replace(
        TWO_LOSSES,
        accumulate=3,
        window_first=True,
        body=(Op("zero"), *BOTH, Op("step", 0, "update")),
    ),
    "a batch fetched between the two forward passes of another": replace(
        TWO_LOSSES,
        accumulate=2,
        ahead=1,
        body=(Op("zero"), BOTH[0], Op("fetch"), *BOTH[1:], Op("step", 0, "update")),
    ),
    "two passes of one loss, after a step, when all batches are fetched already": replace(
        TWO_MODELS,
        ahead=3,
        losses=(Loss((1, 0)), Loss((0, 1))),
        body=(
            *(BOTH[0], BOTH[2], Op("zero"), Op("step"), BOTH[1]),
            *(Op("backward", 1, how="twice"), Op("step", 1), Op("fetch"), Op("zero", 1)),
        ),
    ),
    "a mean in every part of a window": replace(
        TWO_LOSSES,
        accumulate=2,
        body=(
            Op("evaluate", when="update"),
            *BOTH,
            Op("step", 0, "update"),
            Op("mean", 0, "update"),
        ),
    ),
    "a window without a backward pass": Program(
        0,
        samples=24,
        accumulate=3,
        body=(Op("forward"), Op("backward", when="odd"), Op("step", 0, "update")),
    ),
    "a mean between batches that are all fetched": Program(
        0,
        samples=24,
        ahead=3,
        body=(Op("zero"), *BOTH[::2], Op("step"), Op("mean", 0, "update"), Op("fetch")),
    ),
    "a step after the end of the epoch was fetched": replace(
        TWO_MODELS,
        ahead=1,
        body=(Op("zero"), Op("zero", 1), *BOTH, Op("step"), Op("fetch"), Op("step", 1)),
    ),
}
"""Loops that once trained another model without a word."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name: str, worker_pool: WorkerPool) -> None:
    warm_up(worker_pool)
    verdict = judge(FOUND[name], worker_pool)
    assert verdict.kind == "agreed", f"{text_of(FOUND[name])}\n{verdict}"


def test_batches_in_another_order_than_they_were_fetched_are_refused(
    worker_pool: WorkerPool,
) -> None:
    warm_up(worker_pool)
    body = (Op("zero"), Op("forward"), Op("backward"), Op("step"), Op("fetch"))
    verdict = judge(Program(0, samples=24, ahead=2, swaps=True, body=body), worker_pool)
    assert verdict.kind == "refused", verdict
    assert "in the order in which they are fetched" in verdict.why


def test_what_is_drawn_has_everything_in_it() -> None:
    programs = [draw(seed) for seed in range(BLOCKS * PER_BLOCK)]
    assert all(is_sensible(program) for program in programs)
    done = {(op.do, op.when) for program in programs for op in program.body}
    kinds = {"zero", "forward", "backward", "step", "clip", "schedule", "mean", "evaluate"}
    assert {kind for kind, _ in done} == kinds | {"freeze", "fetch"}
    assert ("backward", "odd") in done, "backward passes are skipped"
    hows = {op.how for program in programs for op in program.body}
    assert {"twice", "zeros", "no_sync on even updates"} <= hows
    assert {program.reduction for program in programs} == {"mean", "sum", "weight"}
    assert {program.accumulate for program in programs} == {1, 2, 3}
    assert {program.ahead for program in programs} == {0, 1, 2, 3}
    assert any(program.window_first for program in programs)
    assert any(program.swaps for program in programs)
    assert any(program.loader_workers for program in programs)
    assert any(program.breaks_at is not None for program in programs)
    assert any(program.samples % program.batch for program in programs)
    assert any(len(program.optimizers) > 1 for program in programs)


def work_with_equal_weights(program: Program) -> dict[str, Any]:
    """A worker whose gradients count as if all shares were equal: what the fuzzer must find."""
    start = Gradients.start

    def start_wrongly(self: Gradients, weight: Any, **options: Any) -> None:
        start(self, 1 / program.workers, **options)

    Gradients.start = start_wrongly  # type: ignore[method-assign]
    try:
        return work(program)
    finally:
        Gradients.start = start  # type: ignore[method-assign]


@pytest.mark.parametrize("seed", range(3))
def test_the_fuzzer_notices_when_the_weights_are_wrong(
    seed: int, worker_pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(seed, workers=3, samples=20, batch=9)
    assert judge(program, worker_pool).kind == "agreed"
    monkeypatch.setattr(loop_fuzzer, "work", work_with_equal_weights)
    verdict = judge(program, worker_pool)
    assert verdict.kind == "wrong"
    assert "off" in verdict.why


def work_and_break(program: Program) -> dict[str, Any]:
    raise RuntimeError("not an error of ours")


def test_the_fuzzer_notices_an_error_that_is_not_ours(
    worker_pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_fuzzer, "work", work_and_break)
    verdict = judge(Program(0), worker_pool)
    assert verdict.kind == "wrong"
    assert "not an error of ours" in verdict.why


def test_a_loop_that_only_one_worker_leaves_is_not_taken_for_right(
    worker_pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_fuzzer, "work", work_and_leave)
    assert judge(Program(0, samples=32), worker_pool).kind != "agreed"


def work_and_leave(program: Program) -> dict[str, Any]:
    """A worker that leaves its loop early, on a value of its own."""
    launch = Launch.from_environment(os.environ)
    assert launch is not None
    return work(replace(program, breaks_at=1) if launch.worker == 1 else program)


def test_a_failing_program_is_made_as_small_as_it_can_be() -> None:
    program = replace(draw(12), reduction="sum", body=(*draw(12).body, Op("clip")))
    found = shrink(program, lambda one: any(op.do == "clip" for op in one.body))
    assert sorted(op.do for op in found.body) == ["backward", "clip", "forward", "step"]
    assert found.reduction == "mean"


def test_a_program_can_be_read() -> None:
    program = Program(7, losses=(Loss((0,)),), body=(Op("forward"), Op("backward", how="twice")))
    assert text_of(program).splitlines()[-2:] == [
        "        loss0 = forward(batch)",
        "        loss0.backward()  # twice",
    ]
