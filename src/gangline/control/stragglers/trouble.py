# SPDX-License-Identifier: Apache-2.0
"""Who is in trouble, and in which: told apart by what gets slower.

- `compute`: what a sample costs the worker rises. A sample's cost is the step's time over n + a/b, with
  the step's fixed part counted as the a/b samples that it is worth, so that it does not depend on n.
- `link`: its hops get slower while its computing is as usual. A worker says how long its *fastest* hop
  takes: who has a bad way out has no fast hop, while each of its neighbours still has one.
- `line`: its reports arrive later than the others' while its steps go on as usual. This is congestion
  on the way to the coordinator. Nobody waits for reports, so it is said and nothing is done about it.

A detector counts steps. Where these are short, another process that has the core for a moment makes
enough of them slow, again and again. So a verdict is said when it has lasted, with the steps that it is
made of, for `steady_s`, which is what excluding a worker costs: what is over before leads to nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control.commands import Command, Say
from gangline.control.shares.rebalance import SETTLED
from gangline.control.shares.speeds import LEAST_CONTRAST
from gangline.control.stragglers.oversight import COMPUTE, LATELY, LINE, LINK, SLOWER
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gangline.control.detection import Detector, Verdicts
    from gangline.control.inputs import StepMeasured
    from gangline.control.shares.speeds import Speeds
    from gangline.control.state import ControlState
    from gangline.control.stragglers.oversight import Oversight
    from gangline.planning.allocation.bounds import Floats, Shares

SETTLING = 3
"""Observations after a share moved far, for which a sample's cost is not known well."""
LINE_FLOOR_S = 0.5
"""A report may be late by this much without anything being wrong: short steps are reported together."""
LINE_EVERY_S = 1.0
"""How often that is looked at: short steps are reported together, so they are late together."""
_WHAT = {COMPUTE: "per sample", LINK: "for a hop", LINE: "until its reports arrive"}


def notice(
    state: ControlState, event: StepMeasured, now: float
) -> tuple[ControlState, list[Command]]:
    """Learns from a step; says whose trouble began or ended."""
    oversight = state.oversight
    computing, compute = oversight.computing.observe(_sample_cost_s(state, event))
    linking, link = _observe(oversight.linking, by_rank(state, event.workers, event.hop_s))
    is_line_due = now - oversight.lined_s >= LINE_EVERY_S
    late_s = by_rank(state, event.workers, event.delay_s) if is_line_due else None
    lining, line = _observe(oversight.lining, None if late_s is None else late_s + LINE_FLOOR_S)
    verdicts = _told_apart(compute, link, line)
    oversight = msgspec.structs.replace(
        oversight,
        in_trouble={**oversight.in_trouble, **{kind: one.slow for kind, one in verdicts.items()}},
        measured_s=(*oversight.measured_s[1:], now),
    )
    lasting = {
        kind: _lasting(oversight, kind, verdict, now, steady_s=state.options.steady_s)
        for kind, verdict in verdicts.items()
    }
    after = msgspec.structs.replace(
        oversight,
        told={**oversight.told, **{kind: one.slow for kind, (one, _) in lasting.items()}},
        untold_s={**oversight.untold_s, **{kind: since for kind, (_, since) in lasting.items()}},
        computing=computing,
        linking=linking,
        lining=lining,
        lined_s=oversight.lined_s if line is None else now,
        hop_s=oversight.hop_s if link is None else link.measured,
        exchange_s=_pushed(oversight, event),
        lately=_lately(state, event),
    )
    after = msgspec.structs.replace(after, calm_exchange_s=_calm_exchange_s(after, state.speeds))
    after = _note_healthy(after, state.speeds, state.shares)
    said = [
        command
        for kind, (verdict, _) in lasting.items()
        for command in _say(
            state, kind, verdict, before=oversight.told[kind], step=event.step, now=now
        )
    ]
    return msgspec.structs.replace(state, oversight=after), said


def _calm_exchange_s(oversight: Oversight, speeds: Speeds) -> float:
    """The shortest exchange under such a cut: after another one, computing hides more or less of it."""
    has_moved = (speeds.contrast > LEAST_CONTRAST) & (speeds.since_contrast < LATELY)
    if has_moved.any():
        return math.inf
    if not np.isfinite(oversight.exchange_s).all():
        return oversight.calm_exchange_s
    return min(oversight.calm_exchange_s, oversight.recent_exchange_s)


def _lasting(
    oversight: Oversight, kind: str, verdict: Verdicts, now: float, *, steady_s: float
) -> tuple[Verdicts, Floats]:
    """What can be said by a verdict, and since when the rest of it has not been said."""
    told = oversight.told[kind]
    differs = verdict.slow != told
    since_s = np.fmin(oversight.untold_s[kind], oversight.measured_s[0])
    lasts = differs & (now - since_s >= steady_s)
    slow = np.where(lasts, verdict.slow, told)
    return msgspec.structs.replace(verdict, slow=slow), np.where(differs & ~lasts, since_s, np.nan)


def _lately(state: ControlState, event: StepMeasured) -> tuple[Floats, ...]:
    """The last steps with the present shares; the first of a view pays for new sizes."""
    view, lately = state.view, state.oversight.lately
    compute_s = by_rank(state, event.workers, event.compute_s)
    assert view is not None
    assert compute_s is not None
    if event.view != view.number:
        return lately
    if state.steps_in_view <= 1:
        return (np.full(len(compute_s), np.nan),) * len(lately)
    return (*lately[1:], compute_s)


def _note_healthy(oversight: Oversight, speeds: Speeds, shares: Shares) -> Oversight:
    """Remembers the speed of who is not much slower than before, whatever the detector thinks."""
    slowdown = oversight.slowdown(speeds, shares)
    is_known = speeds.observed >= SETTLED
    with np.errstate(invalid="ignore"):
        learns = is_known & ~(slowdown > SLOWER) & ~oversight.in_trouble[COMPUTE]
    return msgspec.structs.replace(
        oversight,
        healthy_fixed_s=np.where(learns, speeds.fixed_s, oversight.healthy_fixed_s),
        healthy_per_sample_s=np.where(learns, speeds.per_sample_s, oversight.healthy_per_sample_s),
    )


def by_rank(state: ControlState, workers: tuple[int, ...], values: Floats | None) -> Floats | None:
    """Measurements in the order of the members, NaN for those that are not among them."""
    if values is None or workers == state.members:
        return values
    place = {worker: i for i, worker in enumerate(workers)}
    return np.array([values[place[w]] if w in place else np.nan for w in state.members])


def _told_apart(
    compute: Verdicts, link: Verdicts | None, line: Verdicts | None
) -> dict[str, Verdicts]:
    """Whoever computes slowly is late everywhere, and a bad link may delay reports, too."""
    told, explained = {COMPUTE: compute}, compute.slow
    for kind, verdict in ((LINK, link), (LINE, line)):
        if verdict is not None:
            told[kind] = msgspec.structs.replace(verdict, slow=verdict.slow & ~explained)
            explained = explained | verdict.slow
    return told


def _observe(detector: Detector, values: Floats | None) -> tuple[Detector, Verdicts | None]:
    return (detector, None) if values is None else detector.observe(values)


def _sample_cost_s(state: ControlState, event: StepMeasured) -> Floats:
    """What a sample costs each member; NaN where that cannot be told from this step."""
    speeds = state.speeds
    n = by_rank(state, event.workers, np.asarray(event.samples, dtype=float))
    t = by_rank(state, event.workers, event.compute_s)
    assert n is not None
    assert t is not None
    is_unsettled = (speeds.contrast > LEAST_CONTRAST) & (speeds.since_contrast < SETTLING)
    with np.errstate(invalid="ignore"):
        known = (speeds.observed > 0) & (n > 0) & (n == speeds.settled_samples) & ~is_unsettled
        known &= t > 0
    worth = speeds.fixed_s / speeds.per_sample_s
    return np.where(known, t / np.where(known, n + worth, 1.0), np.nan)


def _pushed(oversight: Oversight, event: StepMeasured) -> Floats:
    """The last exchanges, with this step's."""
    if math.isnan(event.exchange_s):
        return oversight.exchange_s
    return np.append(oversight.exchange_s[1:], event.exchange_s)


def _say(
    state: ControlState,
    kind: str,
    verdict: Verdicts,
    *,
    before: NDArray[np.bool_],
    step: int,
    now: float,
) -> list[Command]:
    commands: list[Command] = []
    slow = verdict.slow
    for began, changed in ((True, slow & ~before), (False, before & ~slow)):
        ranks = np.flatnonzero(changed)
        if len(ranks):
            worst = int(ranks[verdict.factor[ranks].argmax()])
            decision = _decision(state, kind, verdict, worst, ranks, began=began)
            numbers = {"step": float(step), **decision.numbers}
            reason = f"step {step}: {decision.reason}"
            commands.append(
                Say(
                    decision=msgspec.structs.replace(
                        decision, t=now, reason=reason, numbers=numbers
                    )
                )
            )
    return commands


def _decision(
    state: ControlState, kind: str, verdict: Verdicts, rank: int, ranks: Shares, *, began: bool
) -> Decision:
    worker, factor = state.members[rank], float(verdict.factor[rank])
    measured, usual = float(verdict.measured[rank]), float(verdict.usual[rank])
    more = f", and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    takes = f"takes {factor:.2f} times as long as usual {_WHAT[kind]}"
    shown = f"({measured:.4g} s, usually {usual:.4g} s)"
    then = "" if began else "is as usual again: it "
    return Decision(
        t=0.0,
        what=f"{kind}_trouble" if began else f"{kind}_recovered",
        reason=f"worker {worker} {then}{takes} {shown}{more}",
        numbers={
            "worker": float(worker),
            "factor": factor,
            "measured_s": measured,
            "usual_s": usual,
            "workers": float(len(ranks)),
        },
    )
