# SPDX-License-Identifier: Apache-2.0
"""What follows from measurements: better estimates, and, where they justify it, a new cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control.commands import Command, Say
from gangline.control.shares.rebalance import (
    SETTLED,
    Recut,
    find_recut,
    is_worth_another_look,
    needed_certainty,
)
from gangline.control.shares.speeds import observe
from gangline.control.stragglers.manager import climb
from gangline.control.stragglers.solo import try_alone
from gangline.control.stragglers.trouble import notice
from gangline.control.sync.pace import hint
from gangline.control.views import FEW_WORKERS, cut, next_number, publish
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gangline.control.inputs import MetricsMeasured, StepMeasured
    from gangline.control.shares.price import RecutPrice
    from gangline.control.state import ControlState
    from gangline.planning.allocation.bounds import Floats


def note_metrics(state: ControlState, event: MetricsMeasured) -> ControlState:
    """Remembers the metrics, if they speak of all members."""
    if event.workers == state.members:
        return msgspec.structs.replace(state, metrics=event)
    if not set(state.members) <= set(event.workers):
        return state
    place = {worker: i for i, worker in enumerate(event.workers)}
    order = [place[worker] for worker in state.members]
    return msgspec.structs.replace(
        state,
        metrics=msgspec.structs.replace(
            event,
            workers=state.members,
            operations_per_s=np.asarray(event.operations_per_s)[order],
            memory_bytes=np.asarray(event.memory_bytes)[order],
            latency_s=np.asarray(event.latency_s)[order],
        ),
    )


def note_step(
    state: ControlState, event: StepMeasured, now: float
) -> tuple[ControlState, list[Command]]:
    """Learns from a step, whatever view it belongs to; then questions the newest view's cut."""
    if state.view is None:
        raise UsageError(f"step {event.step} was measured before any worker joined")
    samples, compute_s = _by_rank(state, event)
    price = _price(state, event, samples, compute_s)
    speeds, factors = observe(state.speeds, samples, compute_s)
    is_newest = event.view == state.view.number
    state = msgspec.structs.replace(
        state, speeds=speeds, price=price, steps_in_view=state.steps_in_view + is_newest
    )
    changes = _changes(state, factors, event.step, now)
    state, troubles = notice(state, event, now)
    said = changes + troubles
    if not is_newest:
        return state, said
    state, commands, is_excluded = climb(state, event.step, now)
    if not is_excluded:
        state, trial = try_alone(state, event, now)
        state, recut = (state, []) if trial else _question_cut(state, event.step, now)
        commands = commands + trial + recut
    state, hints = hint(state, now)
    return state, said + commands + hints


def _by_rank(state: ControlState, event: StepMeasured) -> tuple[NDArray[np.int64], Floats]:
    """The measurements in the order of the newest view's ranks; nothing of those not measured."""
    if event.workers == state.members:
        return event.samples, event.compute_s
    samples = np.zeros(len(state.members), dtype=np.int64)
    compute_s = np.full(len(state.members), np.nan)
    rank = {worker: i for i, worker in enumerate(state.members)}
    for i, worker in enumerate(event.workers):
        if worker in rank:
            samples[rank[worker]] = event.samples[i]
            compute_s[rank[worker]] = event.compute_s[i]
    return samples, compute_s


def _price(
    state: ControlState, event: StepMeasured, samples: NDArray[np.int64], compute_s: Floats
) -> RecutPrice:
    """What a new cut costs, if this is the first step after one."""
    if event.view != state.price.view or not np.isfinite(compute_s).any():
        return state.price
    return state.price.measured(
        event.view,
        step_s=float(np.nanmax(compute_s)),
        predicted_s=float(state.speeds.predicted_s(samples).max()),
    )


def _question_cut(state: ControlState, step: int, now: float) -> tuple[ControlState, list[Command]]:
    match state.options.allocation:
        case "equal" | "fixed":
            return state, []
        case "balanced":
            return _rebalance(state, step, now)
        case _:
            return _recut_in_turn(state, step, now)


def _rebalance(state: ControlState, step: int, now: float) -> tuple[ControlState, list[Command]]:
    observations = int(state.speeds.observed.min())
    # The first step of a view is not observed where shares moved: there is nothing new to go by.
    if observations < SETTLED or state.steps_in_view < 2:
        return state, []
    is_doubtful = is_worth_another_look(observations, at_last_look=state.measurements_behind_cut)
    recut = find_recut(
        state.speeds,
        state.shares,
        max_samples=state.max_samples,
        options=state.options,
        certainty=needed_certainty(len(state.shares), is_doubtful=is_doubtful),
    )
    if recut is not None or is_doubtful:
        state = msgspec.structs.replace(state, measurements_behind_cut=observations)
    if recut is None:
        return state, []
    price = state.price.lost(recut.present_s - recut.predicted_s)
    state = msgspec.structs.replace(state, price=price)
    if not price.is_paid:
        return state, []
    state = msgspec.structs.replace(state, price=price.cut_anew(next_number(state)))
    return publish(
        state,
        members=state.members,
        shares=recut.shares,
        reason=_why(state, recut, step, price),
        numbers=_numbers(state, recut, step) | {"price_s": price.price_s},
        now=now,
    )


def _recut_in_turn(
    state: ControlState, step: int, now: float
) -> tuple[ControlState, list[Command]]:
    """A new cut every `recut_steps` steps; for `kqv` the first as soon as there are metrics."""
    allocation = state.options.allocation
    is_in_turn = state.steps_in_view >= state.options.recut_steps
    if allocation != "random":
        has_news = state.measurements_behind_cut == 0
        is_in_turn = state.metrics is not None and (is_in_turn or has_news)
    if not is_in_turn:
        return state, []
    shares = cut(state)
    state = msgspec.structs.replace(state, measurements_behind_cut=1, steps_in_view=0)
    if np.array_equal(shares, state.shares):
        return state, []
    return publish(
        state,
        members=state.members,
        shares=shares,
        reason=f"step {step}: {allocation} cut, made anew every {state.options.recut_steps} steps",
        numbers={"step": float(step), "global_batch": float(shares.sum())},
        now=now,
    )


def _why(state: ControlState, recut: Recut, step: int, price: RecutPrice) -> str:
    slow = recut.slowest
    noise = float(np.median(state.speeds.noise))
    paid = (
        f"; that steps were longer has cost {price.lost_s:.2g} s, and the new cut costs about "
        f"{price.price_s:.2g} s"
        if price.price_s
        else ""
    )
    return (
        f"step {step}: worker {state.members[slow]} needs {recut.present_s:.4g} s for its "
        f"{state.shares[slow]} samples; cut anew, a step takes {recut.predicted_s:.4g} s, "
        f"{recut.gain:.0%} less ({recut.least_gain:.0%} at least; step times vary by {noise:.0%})"
        f"{paid}"
    )


def _numbers(state: ControlState, recut: Recut, step: int) -> dict[str, float]:
    speeds = state.speeds
    numbers = {
        "step": float(step),
        "present_s": recut.present_s,
        "predicted_s": recut.predicted_s,
        "gain": recut.gain,
        "least_gain": recut.least_gain,
        "noise": float(np.median(speeds.noise)),
        "observations": float(speeds.observed.min()),
    }
    if len(state.members) <= FEW_WORKERS:
        for rank, worker in enumerate(state.members):
            numbers[f"fixed_s_{worker}"] = float(speeds.fixed_s[rank])
            numbers[f"per_sample_s_{worker}"] = float(speeds.per_sample_s[rank])
    return numbers


def _changes(state: ControlState, factors: Floats, step: int, now: float) -> list[Command]:
    """Says whose speed was found changed, the greatest change first."""
    changed = np.flatnonzero(factors != 1)
    if len(changed) == 0:
        return []
    worst = int(changed[np.abs(np.log(factors[changed])).argmax()])
    factor = float(factors[worst])
    others = f", and {len(changed) - 1} more changed" if len(changed) > 1 else ""
    decision = Decision(
        t=now,
        what="speed_changed",
        reason=(
            f"step {step}: worker {state.members[worst]} takes {factor:.2f} times as long as "
            f"before{others}"
        ),
        numbers={
            "step": float(step),
            "worker": float(state.members[worst]),
            "factor": factor,
            "changed": float(len(changed)),
        },
    )
    return [Say(decision=decision)]
