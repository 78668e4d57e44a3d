# SPDX-License-Identifier: Apache-2.0
"""Runs random training loops in plain torch and by gangline: they agree, or gangline says why not.

python tests/scripts/loop_fuzzer.py --seed 17          one program, in words, and what becomes of it
python tests/scripts/loop_fuzzer.py --seed 17 --shrink     the least part of it that fails as well
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter, deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parent))

import no_gangline
import torch
from loop_programs import MOST_WORKERS, Loss, Op, Program, draw, shrink, text_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import gangline
from gangline.spec.errors import ExchangeError, GanglineError, LaunchError, MismatchError
from gangline.testing import WorkerError, WorkerPool
from gangline.testing.shares import changing_shares

if TYPE_CHECKING:
    from collections.abc import Iterator

FEATURES, HIDDEN = 4, 3
TOLERANCE = 1e-9
DEADLINE_S = 30.0
TIMEOUT_S = 20.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, FEATURES)
        self.extra = nn.Linear(FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(torch.tanh(self.first(x)))


class OwnSampler(Sampler[int]):
    """Another order in every epoch, from a generator of its own."""

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.length, generator=self.generator).tolist())


def significance(batch: list[Tensor]) -> float:
    """What the loss is a mean over, where that is not the samples."""
    return float(batch[2].sum())


class Loop:
    """Carries out a program, by gangline or by what stands in for it in plain torch."""

    def __init__(self, program: Program, gang: Any) -> None:
        self.program = program
        self.gang = gang
        self.is_plain = gang is no_gangline
        torch.manual_seed(program.seed)
        generator = torch.Generator().manual_seed(program.seed + 1)
        count = program.samples
        self.data = TensorDataset(
            torch.randn(count, FEATURES, generator=generator),
            torch.randint(0, 3, (count,), generator=generator),
            torch.rand(count, generator=generator) + 0.5,
            torch.arange(count),
        )
        self.models = [Net() for _ in range(program.models)]
        self.optimizers = [self._optimizer(*one) for one in program.optimizers]
        self.schedules = [
            torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in self.optimizers
        ]
        self.means: list[Tensor] = []
        self.updates = 0
        self.values: dict[int, Tensor] = {}
        """By loss, what each sample of the present window had for one; and which samples it has."""

    def _optimizer(self, name: str, models: tuple[int, ...]) -> torch.optim.Optimizer:
        parameters = [p for number in models for p in self.models[number].parameters()]
        rate = 0.01 if self.program.reduction == "sum" else 0.05
        options = {"momentum": 0.8} if name == "SGD" else {"eps": 1e-3}
        made: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, lr=rate, **options)
        return made

    def _loader(self) -> DataLoader[Any]:
        program = self.program
        own = OwnSampler(program.samples, program.seed) if program.order == "sampler" else None
        return DataLoader(
            self.data,
            batch_size=program.batch,
            shuffle=program.order == "shuffle",
            sampler=own,
            drop_last=program.drop_last,
            num_workers=program.loader_workers,
        )

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        program, gang = self.program, self.gang
        gang.init(**({} if self.is_plain else {"timeout_s": TIMEOUT_S}))
        *_, loader = gang.prepare(
            *self.models,
            *self.optimizers,
            self._loader(),
            global_batch=program.batch,
            accumulate=program.accumulate,
            reduction="sum" if program.reduction == "sum" else "mean",
            weight=significance if program.reduction == "weight" else None,
            stateful=self.schedules,
        )
        for _ in range(program.epochs) if program.uses_range else gang.epochs(program.epochs):
            self._epoch(loader)
            if program.evaluates:
                self._evaluate(0)
        parameters = [p.detach().clone() for model in self.models for p in model.parameters()]
        rates = [torch.tensor(one.param_groups[0]["lr"]) for one in self.optimizers]
        return {"parameters": parameters, "rates": rates, "means": self.means}

    def _epoch(self, loader: Any) -> None:
        program = self.program
        batches = iter(loader)
        waiting: deque[Any] = deque()
        parts = 1 if self.is_plain else program.accumulate
        count = updates = 0

        def fetch(number: int = 1) -> None:
            for _ in range(number):
                batch = next(batches, None)
                if batch is not None:
                    waiting.append(batch)

        fetch(program.ahead)
        while True:
            if not program.ahead and not waiting:
                fetch(parts if program.window_first else 1)
            if not waiting:
                return
            if program.swaps and count % 2 == 0 and len(waiting) > 1:
                waiting[0], waiting[1] = waiting[1], waiting[0]
            batch = waiting.popleft()
            count += 1
            self.is_complete = count % parts == 0
            if self.is_complete or count % parts == 1:
                self.losses: dict[int, Tensor] = {}
            for op in program.body:
                if op.do == "fetch":
                    fetch()
                elif self._is_due(op):
                    self._do(op, batch)
            if self.is_complete:  # `is_update()` may be about the next batch already
                self.updates += 1
                updates += 1
                self.values.clear()
                if program.breaks_at is not None and updates > program.breaks_at:
                    return

    def _is_update(self) -> bool:
        if self.program.counts_itself:
            return self.is_complete
        is_update: bool = self.gang.is_update()
        return is_update

    def _is_due(self, op: Op) -> bool:
        if op.do == "freeze" or op.when == "always":
            return True
        if op.when == "odd" and op.do == "backward":  # in all batches of the window, or in none
            return self.updates % 2 == 1
        return self._is_update() and (op.when == "update" or self.updates % 2 == (op.when == "odd"))

    def _do(self, op: Op, batch: list[Tensor]) -> None:
        if op.do == "zero":
            self.optimizers[op.of].zero_grad(set_to_none=op.how != "zeros")
        elif op.do == "forward":
            self.losses[op.of] = self._forward(op.of, batch)
        elif op.do == "backward":
            self._backward(self.losses.pop(op.of), op.how)
        elif op.do == "step":
            self.optimizers[op.of].step()
        elif op.do == "clip":
            nn.utils.clip_grad_norm_(self.models[op.of].parameters(), 0.2)
        elif op.do == "schedule":
            self.schedules[op.of].step()
        elif op.do == "mean":
            self._note_mean(op.of)
        elif op.do == "evaluate":
            self._evaluate(op.of)
        elif op.do == "freeze":
            self.models[op.of].first.requires_grad_(self.updates % 2 == 1)

    # --- what it computes ------------------------------------------------------------------------

    def _forward(self, number: int, batch: list[Tensor]) -> Tensor:
        loss = self.program.losses[number]
        each = self._each(loss, batch)
        x, _, significances, index = batch
        del x
        count = self.program.samples
        values = self.values.setdefault(number, torch.zeros(2, count))
        values[0, index], values[1, index] = each.detach(), 1.0
        if self.program.reduction == "sum":
            return each.sum()
        if self.program.reduction == "weight":
            return (each * significances).sum() / significances.sum()
        return each.mean()

    def _each(self, loss: Loss, batch: list[Tensor]) -> Tensor:
        x, y = batch[0], batch[1]
        hidden = x
        for place, number in enumerate(loss.chain):
            if loss.is_cut and place == len(loss.chain) - 1:
                hidden = hidden.detach()
            hidden = self.models[number](hidden)
        each = (hidden - y.unsqueeze(1)).square().mean(1)
        is_chosen = (y == 0).to(each.dtype)
        if loss.form == "sometimes" and bool(is_chosen.any()):
            extra = self.models[loss.chain[-1]].extra(hidden.detach()).squeeze(1)
            each = each + (extra - 1).square() * is_chosen
        return each

    def _backward(self, loss: Tensor, how: str) -> None:
        is_quiet = how.startswith("no_sync") and self.updates % 2 == 0
        with self.gang.no_sync() if is_quiet else nullcontext():
            if how == "twice":
                loss.backward(retain_graph=True)
            loss.backward()

    def _note_mean(self, number: int) -> None:
        """The mean of the window's samples; who repeats a sample as a ghost has the same of it."""
        own = self.values.get(number)
        own = torch.zeros(2, self.program.samples) if own is None else own
        values, counts = self.gang.mean(own)
        is_there = counts > 0
        self.means.append((values[is_there] / counts[is_there]).sum() / max(1, int(is_there.sum())))

    @torch.no_grad()
    def _evaluate(self, number: int) -> None:
        total, count = 0.0, 0
        for batch in self.gang.evaluate(DataLoader(self.data, batch_size=5)):
            total += float(self._each(Loss((number,)), batch).sum())
            count += len(batch[0])
        mean = self.gang.mean(total / max(count, 1), weight=count)
        self.means.append(torch.tensor(mean))


def perform(program: Program, gang: Any) -> dict[str, Any]:
    """What comes of a program here: its result, or the error that it ended with."""
    before = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        return Loop(program, gang).run()
    except Exception as error:
        is_ours = isinstance(error, GanglineError)
        is_lost = isinstance(error, ExchangeError | LaunchError) and not isinstance(
            error, MismatchError
        )
        kind = "refused" if is_ours and not is_lost else "failed"
        return {kind: type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
    finally:
        torch.set_default_dtype(before[0])
        torch.set_num_threads(before[1])


def work(program: Program) -> dict[str, Any]:
    """A worker's part."""
    with changing_shares(program.seed):
        return perform(program, gangline)


def do_nothing() -> None:
    """What a pool's processes do first: they have this module imported then, and torch with it."""


def warm_up(pool: WorkerPool) -> None:
    """Starts the pool's processes, which takes as long as it takes."""
    pool.run(do_nothing, MOST_WORKERS, deadline_s=200)


# --- what comes of it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """`agreed`, `refused` (by an error that names the cause), `invalid` (torch itself), `wrong`."""

    kind: str
    why: str = ""


def judge(program: Program, pool: WorkerPool) -> Verdict:
    """Runs a program in plain torch, by a job of one, and by several workers."""
    expected = perform(program, no_gangline)
    if "failed" in expected:
        return Verdict("invalid", f"{expected['failed']}: {expected['message']}")
    try:
        found = pool.run(work, program.workers, args=(program,), deadline_s=DEADLINE_S)
    except WorkerError as error:
        return Verdict("wrong", str(error)[-3000:])
    alone = perform(program, gangline)
    gangline.worker.api.shutdown()
    for who, result in [("alone", alone), *((f"worker {n}", one) for n, one in enumerate(found))]:
        if "failed" in result:
            return Verdict("wrong", f"{who}: {result['trace']}")
    refusals = [one for one in found if "refused" in one]
    if refusals:
        return Verdict("refused", f"{refusals[0]['refused']}: {refusals[0]['message']}")
    if "refused" in alone:
        return Verdict("wrong", f"a job of one is refused what several may: {alone['message']}")
    for who, result in [("alone", alone), *((f"worker {n}", one) for n, one in enumerate(found))]:
        difference = _difference(result, expected)
        if difference:
            return Verdict("wrong", f"{who}: {difference}")
    if any(not torch.equal(a, b) for a, b in _pairs(found)):
        return Verdict("wrong", "the members' parameters are not the same bits")
    return Verdict("agreed")


def _pairs(found: list[dict[str, Any]]) -> Iterator[tuple[Tensor, Tensor]]:
    for other in found[1:]:
        yield from zip(found[0]["parameters"], other["parameters"], strict=True)


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    for name, values in expected.items():
        if len(found[name]) != len(values):
            return f"{len(found[name])} {name}, not {len(values)}"
        for number, (one, other) in enumerate(zip(found[name], values, strict=True)):
            off = float((one - other).norm() / other.norm().clamp(min=1e-3))
            if not off <= TOLERANCE:
                return f"{name} {number} of {len(values)} is {off:.2g} off"
    return ""


@dataclass
class Tally:
    """What came of many programs."""

    verdicts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, seed: int, verdict: Verdict) -> None:
        self.verdicts[verdict.kind] += 1
        if verdict.kind == "refused":
            self.refusals[verdict.why[:110]] += 1
        elif verdict.kind == "wrong":
            self.failures.append((seed, f"{text_of(draw(seed))}\n{verdict.why}"))


def try_all(seeds: range, pool: WorkerPool) -> Tally:
    """Draws, runs and judges a program for each seed."""
    tally = Tally()
    warm_up(pool)
    for seed in seeds:
        tally.add(seed, judge(draw(seed), pool))
    return tally


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--shrink", action="store_true")
    options = parser.parse_args()
    program = draw(options.seed)
    with WorkerPool() as pool:
        warm_up(pool)
        if options.shrink:
            program = shrink(program, lambda one: judge(one, pool).kind == "wrong")
        verdict = judge(program, pool)
    sys.stdout.write(f"{text_of(program)}\n{verdict.kind}: {verdict.why}\n")
    sys.exit(verdict.kind == "wrong")


if __name__ == "__main__":
    from loop_fuzzer import main as run  # workers must be able to import what they shall run

    run()
