# SPDX-License-Identifier: Apache-2.0
"""Random training loops: programs over fetch, forward, backward, step and whatever else people do.

A program is data. `draw(seed)` makes one, `text_of` writes it down as a person would, `shrink` looks
for a smaller one that fails as well; `loop_fuzzer` runs it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WHEN = ("always", "update", "even", "odd")
"""In every batch; when the global batch is complete; then, but only in every other update."""
OPTIMIZERS = ("SGD", "Adam", "RMSprop")
MOST_WORKERS = 3


@dataclass(frozen=True)
class Loss:
    """Samples go through these models, one after the other."""

    chain: tuple[int, ...]
    is_cut: bool = False
    """Whether the last model alone is trained: what comes before it is detached."""
    form: str = "square"
    """`square`, or `sometimes`: samples of class 0 use a layer that no other does."""


@dataclass(frozen=True)
class Op:
    """One line of the loop."""

    do: str
    of: int = 0
    """Which loss, model or optimizer."""
    when: str = "always"
    how: str = ""


@dataclass(frozen=True)
class Program:
    """A training loop, and the data that it goes over."""

    seed: int
    workers: int = 2
    samples: int = 16
    batch: int = 8
    epochs: int = 1
    accumulate: int = 1
    reduction: str = "mean"
    """`mean`, `sum`, or `weight`: a mean over something that is not the samples."""
    order: str = "sequential"
    """`sequential`, `shuffle`, or `sampler`: one of the user's own."""
    drop_last: bool = False
    loader_workers: int = 0
    models: int = 1
    optimizers: tuple[tuple[str, tuple[int, ...]], ...] = (("SGD", (0,)),)
    losses: tuple[Loss, ...] = (Loss((0,)),)
    ahead: int = 0
    """So many batches are fetched before the first is computed."""
    swaps: bool = False
    """Whether the second of two fetched batches is computed before the first, then the first."""
    window_first: bool = False
    """All batches of an accumulation window are fetched before the first of them is computed."""
    counts_itself: bool = False
    """Whether the loop finds out by itself when a window is complete."""
    breaks_at: int | None = None
    """The loop leaves its epoch after this update of it, on an agreed value."""
    uses_range: bool = False
    """Whether the epochs are counted by `range`, not by `gangline.epochs`."""
    evaluates: bool = False
    body: tuple[Op, ...] = (Op("zero"), Op("forward"), Op("backward"), Op("step"))


def draw(seed: int) -> Program:
    """The program of a seed."""
    chance = random.Random(seed)
    workers = chance.choice((2, 2, MOST_WORKERS))
    batch = chance.randrange(workers, 11)
    models = chance.choice((1, 1, 2, 2, 3))
    accumulate = chance.choice((1, 1, 1, 2, 3))
    losses = _draw_losses(chance, models)
    optimizers = _draw_optimizers(chance, models)
    ahead = chance.choice((0, 0, 0, 1, 1, 2, 3))
    breaks = chance.random() < 0.15
    return Program(
        seed=seed,
        workers=workers,
        samples=batch * chance.randrange(1, 4) + chance.randrange(0, batch),
        batch=batch,
        epochs=chance.choice((1, 2, 2, 3)),
        accumulate=accumulate,
        reduction=chance.choice(("mean", "mean", "mean", "sum", "weight")),
        order=chance.choice(("sequential", "sequential", "shuffle", "sampler")),
        drop_last=chance.random() < 0.15,
        loader_workers=2 if chance.random() < 0.06 else 0,
        models=models,
        optimizers=optimizers,
        losses=losses,
        ahead=ahead,
        window_first=accumulate > 1 and ahead == 0 and chance.random() < 0.3,
        counts_itself=chance.random() < 0.5,
        breaks_at=chance.randrange(0, 3) if breaks else None,
        uses_range=chance.random() < 0.3,
        evaluates=chance.random() < 0.3,
        body=_draw_body(chance, losses, optimizers, accumulate=accumulate, ahead=ahead),
        swaps=accumulate == 1 and ahead > 1 and chance.random() < 0.3,
    )


def _draw_losses(chance: random.Random, models: int) -> tuple[Loss, ...]:
    losses = []
    for number in range(max(models, chance.choice((1, 1, 2)))):
        last = number % models
        before = tuple(m for m in range(models) if m != last and chance.random() < 0.3)
        losses.append(
            Loss(
                chain=(*before, last),
                is_cut=chance.random() < 0.5,
                form="sometimes" if chance.random() < 0.2 else "square",
            )
        )
    return tuple(losses)


def _draw_optimizers(chance: random.Random, models: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    if models == 1 or chance.random() < 0.4:
        return ((chance.choice(OPTIMIZERS), tuple(range(models))),)
    return tuple((chance.choice(OPTIMIZERS), (model,)) for model in range(models))


def _draw_body(
    chance: random.Random,
    losses: tuple[Loss, ...],
    optimizers: tuple[tuple[str, tuple[int, ...]], ...],
    *,
    accumulate: int,
    ahead: int,
) -> tuple[Op, ...]:
    body: list[Op] = []
    # A model must not move between the parts of a window, so there all steps come last.
    if accumulate > 1 or len(optimizers) == 1 or chance.random() < 0.6:
        body += [Op("forward", one) for one in range(len(losses))]
        body += [_draw_backward(chance, one, accumulate) for one in range(len(losses))]
        for number in range(len(optimizers)):
            body += _draw_update(chance, number, optimizers[number][1], accumulate)
    else:  # one optimizer after the other
        for number, (_, models) in enumerate(optimizers):
            for one in [one for one, loss in enumerate(losses) if loss.chain[-1] in models]:
                body += [Op("forward", one), _draw_backward(chance, one, accumulate)]
            body += _draw_update(chance, number, models, accumulate)
    for number in range(len(optimizers)):
        body = _place_zero(chance, body, number, accumulate)
    for kind in ("mean", "evaluate", "freeze"):
        if chance.random() < 0.25:
            is_last = kind == "mean" or accumulate > 1
            at = len(body) if is_last else chance.randrange(len(body) + 1)
            of = (
                chance.randrange(len(losses)) if kind == "mean" else chance.choice(optimizers)[1][0]
            )
            when = "even" if kind == "freeze" else chance.choice(("update", "even"))
            body.insert(0 if kind == "freeze" else at, Op(kind, of, when))
    if accumulate == 1:
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            at = chance.randrange(len(body) - 1)
            if (body[at].do, body[at + 1].do) != ("forward", "backward"):
                body[at], body[at + 1] = body[at + 1], body[at]
    if any(op.how.startswith("no_sync") for op in body):  # until the exchange, .grad is one's own
        body = [op for op in body if op.do != "clip"]
    if ahead:
        body.insert(_draw_fetch(chance, body, accumulate), Op("fetch"))
    return tuple(body)


def _draw_fetch(chance: random.Random, body: list[Op], accumulate: int) -> int:
    """Where the next batch is fetched: `is_update()` is asked of the present one before."""
    if accumulate == 1:
        return chance.randrange(len(body) + 1)
    return chance.choice((*range(min(_always(body), default=0) + 1), len(body)))


def _draw_backward(chance: random.Random, loss: int, accumulate: int) -> Op:
    how = ""
    if chance.random() < 0.1:
        how = "twice"
    elif accumulate == 1 and chance.random() < 0.1:
        how = "no_sync on even updates"
    return Op("backward", loss, chance.choice(("always",) * 9 + ("odd",)), how)


def _draw_update(
    chance: random.Random, number: int, models: tuple[int, ...], accumulate: int
) -> Iterator[Op]:
    if chance.random() < 0.3:
        yield Op("clip", chance.choice(models), chance.choice(("always", "update")))
    yield Op("step", number, chance.choice(("always", "update", "update", "odd")))
    if chance.random() < 0.3:
        yield Op("schedule", number, "update")


def _place_zero(chance: random.Random, body: list[Op], number: int, accumulate: int) -> list[Op]:
    how = chance.choice(("none", "none", "zeros"))
    place = chance.choice(("before", "before", "after", "after", "middle", "nowhere"))
    if place == "before":
        return [Op("zero", number, "always", how), *body]
    if place == "after":
        return [*body, Op("zero", number, chance.choice(("always", "update")), how)]
    if place == "middle" and accumulate == 1:
        at = chance.randrange(len(body))
        return [*body[:at], Op("zero", number, "always", how), *body[at:]]
    return body


# --- writing it down -----------------------------------------------------------------------------


def text_of(program: Program) -> str:
    """The loop as somebody would write it."""
    fields = {
        name: getattr(program, name)
        for name in ("workers", "samples", "batch", "epochs", "accumulate", "reduction", "order")
    }
    fields |= {"drop_last": program.drop_last, "loader_workers": program.loader_workers}
    lines = [f"# --seed {program.seed}: " + ", ".join(f"{k}={v}" for k, v in fields.items())]
    lines += [f"# opt{n} = {o}(models {m})" for n, (o, m) in enumerate(program.optimizers)]
    for number, loss in enumerate(program.losses):
        cut = ", all but the last detached" if loss.is_cut and len(loss.chain) > 1 else ""
        lines.append(f"# loss{number}: {loss.form}, through models {loss.chain}{cut}")
    lines.append(f"for epoch in {'range' if program.uses_range else 'gangline.epochs'}(…):")
    if program.window_first:
        lines.append("    # all batches of a window are fetched at its beginning")
    if program.ahead:
        lines.append(f"    fetch {program.ahead} batches")
        order = ", the second before the first" if program.swaps else ""
        lines.append(f"    while there are batches{order}:")
    else:
        lines.append("    for batch in loader:")
    lines += [f"        {_line(op, program)}" for op in program.body]
    if program.breaks_at is not None:
        lines.append(f"        if update {program.breaks_at} of this epoch is done: break")
    if program.evaluates:
        lines.append("    evaluate(model 0)")
    return "\n".join(lines)


def _line(op: Op, program: Program) -> str:
    own = " (counted by the loop)" if program.counts_itself else ""
    when = {
        "always": "",
        "update": f"if is_update(){own}: ",
        "even": f"if is_update(){own} and the number of updates is even: ",
        "odd": f"if is_update(){own} and the number of updates is odd: ",
    }[op.when]
    if op.do == "backward" and op.when == "odd":
        when = "if the number of updates is odd: "
    elif op.do == "freeze":
        when = "if the number of updates is even: "
    what = {
        "zero": f"opt{op.of}.zero_grad({'set_to_none=False' if op.how == 'zeros' else ''})",
        "forward": f"loss{op.of} = forward(batch)",
        "backward": f"loss{op.of}.backward()",
        "step": f"opt{op.of}.step()",
        "clip": f"clip_grad_norm_(model {op.of})",
        "schedule": f"scheduler{op.of}.step()",
        "mean": f"note the mean of loss{op.of} over the global batch",
        "evaluate": f"evaluate(model {op.of})",
        "freeze": f"freeze the first layer of model {op.of} (else unfreeze it)",
        "fetch": "fetch the next batch",
    }[op.do]
    suffix = f"  # {op.how}" if op.how not in ("", "none", "zeros") else ""
    return f"{when}{what}{suffix}"


# --- looking for less ----------------------------------------------------------------------------


def is_sensible(program: Program) -> bool:
    """Whether the loop means the same whatever the parts are into which a global batch is cut."""
    kinds = [op.do for op in program.body]
    if not {"backward", "step"} <= {*kinds} or (program.ahead > 0) != ("fetch" in kinds):
        return False
    if any(
        op.do in ("mean", "evaluate", "schedule") and op.when == "always" for op in program.body
    ):
        return False
    computed = {op.of for op in program.body if op.do == "forward"}
    if any(op.do == "backward" and op.of not in computed for op in program.body):
        return False
    if "clip" in kinds and any(op.how.startswith("no_sync") for op in program.body):
        return False
    if program.accumulate == 1:
        return True
    passes = [at for at, kind in enumerate(kinds) if kind == "backward"]
    if {"step", "clip"} & {*kinds[: passes[-1]]} or "zero" in kinds[passes[0] : passes[-1]]:
        return False
    asks = [at for at, op in enumerate(program.body) if op.do in ("evaluate", "mean")]
    if any(at < passes[-1] for at in asks):
        return False
    # After a fetch, `is_update()` is about the next batch, unless a backward pass follows.
    return all(program.body[at].when in ("always", "odd") for at in passes) and (
        "fetch" not in kinds
        or kinds[-1] == "fetch"
        or kinds.index("fetch") <= min(_always(program.body), default=0)
    )


def _always(body: tuple[Op, ...] | list[Op]) -> list[int]:
    """Where the backward passes are that every batch has."""
    return [at for at, op in enumerate(body) if op.do == "backward" and op.when == "always"]


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A smaller program that fails as well: lines and options go as long as it does."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _simpler(program):
            if candidate != program and is_sensible(candidate) and fails(candidate):
                program, is_smaller = candidate, True
                break
    return program


def _simpler(program: Program) -> Iterator[Program]:
    usual, body = Program(program.seed), program.body
    for loss in range(len(program.losses)):
        kept = [op for op in body if op.do not in ("forward", "backward", "mean") or op.of != loss]
        yield replace(program, body=tuple(kept))
    unfetched = tuple(op for op in body if op.do != "fetch")
    yield replace(program, ahead=0, swaps=False, body=unfetched)
    yield replace(program, swaps=False)
    for at in range(len(body)):
        yield replace(program, body=body[:at] + body[at + 1 :])
    names = ("epochs", "accumulate", "reduction", "order", "drop_last", "loader_workers")
    for name in (*names, "window_first", "counts_itself", "breaks_at", "uses_range", "evaluates"):
        yield replace(program, **{name: getattr(usual, name)})
    yield replace(program, ahead=min(1 + program.swaps, program.ahead))
    for batches in range(1, program.samples // program.batch + 1):
        yield replace(program, samples=batches * program.batch)
    yield replace(program, workers=2)
    for at, op in enumerate(body):
        for simple in (replace(op, when="update"), replace(op, when="always"), replace(op, how="")):
            if simple.when == op.when or op.when != "always":
                yield replace(program, body=(*body[:at], simple, *body[at + 1 :]))
