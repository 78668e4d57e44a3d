# SPDX-License-Identifier: Apache-2.0
"""How soon a worker that got slower is met, and how often plain noise is taken for one: each detector.

    python benchmarks/detection.py [--short] [--seeds 8] [--hours 1]

Simulated runs of four workers whose step times vary by 13 %. In the first scenario a worker becomes
five times slower and its share shrinks. In the second a step's fixed part is so large that shrinking
does not help: the worker is excluded, recovers, and rejoins. In the third nothing happens for hours but
noise and pauses, among unlike workers. All times are virtual seconds and steps since the change.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control import ControlOptions
from gangline.control.detection import DETECTORS, detector_named
from gangline.simulation import Scenario, simulate
from gangline.simulation.scenario import SimulatedNode, Throttle
from gangline.spec.event import AnyEvent, Decision, StepDone, ViewAdopted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

RESULTS = Path(__file__).parent / "results"
NOISE = 0.13
BATCH = 256
FACTOR = 5.0
CHANGE, RECOVERY = 200, 600
"""The steps at which the worker becomes slower, and is as before."""
ILL = 3
UNLIKE = (1.0, 0.5, 0.2, 0.1)
NOISE_STEP_S = 0.09
"""About what a step of the third scenario takes."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """When something happened, counted from the change that led to it."""

    steps: int
    seconds: float


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one worker's slowness; None where it did not happen."""

    verdict: Moment | None
    shrunk: Moment | None
    excluded: Moment | None
    rejoined: Moment | None


class Alarms(msgspec.Struct, frozen=True, kw_only=True):
    """What plain noise was taken for."""

    hours: float
    verdicts: int
    """Workers called slow: whom the published algorithm excludes at once."""
    exclusions: int
    """Workers that were excluded here."""


def throttled(*, fixed_s: float) -> Scenario:
    """Four workers alike, one of which becomes slower and recovers."""
    throttle = Throttle(from_step=CHANGE, to_step=RECOVERY, factor=FACTOR)
    nodes = (
        SimulatedNode(name="well", workers=ILL),
        SimulatedNode(name="ill", throttles=(throttle,)),
    )
    return Scenario(nodes=nodes, noise=NOISE, fixed_s=fixed_s, exchange_s=0.002)


def unlike() -> Scenario:
    """Four unlike workers, each of which pauses now and then."""
    nodes = tuple(
        SimulatedNode(name=f"n{i}", speed=speed, pause_probability=0.002, pause_s=0.5)
        for i, speed in enumerate(UNLIKE)
    )
    return Scenario(nodes=nodes, noise=NOISE, exchange_s=0.01, per_sample_s=0.0005)


def run(
    scenario: Scenario, *, detector: str, steps: int, seed: int, keeps: type | tuple[type, ...]
) -> list[AnyEvent]:
    """The events of a simulated run that are of these kinds."""
    events: list[AnyEvent] = []

    def keep(event: AnyEvent) -> None:
        if isinstance(event, keeps):
            events.append(event)

    # Every verdict is said, however short.
    options = ControlOptions(global_batch=BATCH, detector=detector_named(detector), steady_s=0.0)
    simulate(scenario, options=options, steps=steps, seed=seed, sink=keep)
    return events


def meet(detector: str, *, fixed_s: float, seed: int) -> Met:
    """One worker becomes slower: when it was noticed, and what was done."""
    kinds = (Decision, ViewAdopted, StepDone)
    events = run(
        throttled(fixed_s=fixed_s), detector=detector, steps=RECOVERY + 600, seed=seed, keeps=kinds
    )
    began = {e.step: e.t for e in reversed(events) if isinstance(e, StepDone)}
    views = [event for event in events if isinstance(event, ViewAdopted)]
    before = next(view for view in reversed(views) if view.step <= CHANGE)
    usual = before.shares[ILL]

    def since(step: int, times: Iterable[float]) -> Moment | None:
        t = min((time for time in times if time >= began[step - 1]), default=None)
        if t is None:
            return None
        done = sum(began[step - 1] < at <= t for at in began.values())
        return Moment(steps=done, seconds=t - began[step - 1])

    def share(view: ViewAdopted) -> int:
        return view.shares[view.members.index(ILL)] if ILL in view.members else 0

    def said(what: str) -> list[float]:
        named = (e for e in events if isinstance(e, Decision) and e.what == what)
        return [e.t for e in named if e.numbers["worker"] == ILL]

    excluded = since(CHANGE, said("exclude"))
    back = [view.t for view in views if ILL in view.members]
    return Met(
        verdict=since(CHANGE, said("compute_trouble")),
        shrunk=since(CHANGE, [view.t for view in views if share(view) <= usual / 2]),
        excluded=excluded,
        rejoined=None if excluded is None else since(RECOVERY, back),
    )


def listen(detector: str, *, hours: float, seed: int) -> Alarms:
    """Nothing happens but noise."""
    steps = int(hours * 3600 / NOISE_STEP_S)
    events = run(unlike(), detector=detector, steps=steps, seed=seed, keeps=Decision)
    said = [event for event in events if isinstance(event, Decision)]
    return Alarms(
        hours=hours,
        verdicts=sum(int(e.numbers["workers"] or 0) for e in said if e.what.endswith("_trouble")),
        exclusions=sum(event.what == "exclude" for event in said),
    )


def spread(moments: Sequence[Moment | None]) -> str:
    """The median, and the whole range, over seeds."""
    seen = [moment for moment in moments if moment is not None]
    if not seen:
        return "never"
    steps = np.array([moment.steps for moment in seen])
    seconds = np.array([moment.seconds for moment in seen])
    share = "" if len(seen) == len(moments) else f" ({len(seen)} of {len(moments)})"
    return (
        f"{np.median(steps):.0f} steps [{steps.min()}, {steps.max()}], "
        f"{np.median(seconds):.2f} s [{seconds.min():.2f}, {seconds.max():.2f}]{share}"
    )


def table(figures: dict[str, dict[str, list[Met] | list[Alarms]]], *, hours: float) -> str:
    """One row per detector."""
    heads = (
        "detector", "verdict", "share halved", "excluded", "back after recovery",
        f"verdicts in {hours:g} h of noise", f"exclusions in {hours:g} h",
    )  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, found in figures.items():
        shrinks, fixed, alarms = found["shrinks"], found["excluded"], found["noise"]
        cells = (
            name,
            _moments(shrinks, lambda met: met.verdict),
            _moments(shrinks, lambda met: met.shrunk),
            _moments(fixed, lambda met: met.excluded),
            _moments(fixed, lambda met: met.rejoined),
            _counts([one.verdicts for one in alarms if isinstance(one, Alarms)]),
            _counts([one.exclusions for one in alarms if isinstance(one, Alarms)]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _moments(found: Sequence[Met | Alarms], pick: Callable[[Met], Moment | None]) -> str:
    return spread([pick(one) for one in found if isinstance(one, Met)])


def _counts(counts: Sequence[int]) -> str:
    return f"{np.median(counts):.0f} [{min(counts)}, {max(counts)}]"


def main() -> None:
    """Prints the table, and keeps it with every sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--hours", type=float, default=1.0, help="of plain noise, per seed")
    parser.add_argument("--short", action="store_true", help="2 seeds, 6 minutes of noise")
    asked = parser.parse_args()
    seeds = range(2 if asked.short else asked.seeds)
    hours = 0.1 if asked.short else asked.hours
    figures: dict[str, dict[str, list[Met] | list[Alarms]]] = {
        name: {
            "shrinks": [meet(name, fixed_s=0.002, seed=seed) for seed in seeds],
            "excluded": [meet(name, fixed_s=0.05, seed=seed) for seed in seeds],
            "noise": [listen(name, hours=hours, seed=seed) for seed in seeds],
        }
        for name in DETECTORS
    }
    title = (
        f"## A worker becomes {FACTOR:g} times slower (median [least, greatest] of {len(seeds)})"
    )
    text = f"{title}\n\n{table(figures, hours=hours)}\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "detection.md").write_text(text)
    (RESULTS / "detection.json").write_text(json.dumps(msgspec.to_builtins(figures), indent=1))


if __name__ == "__main__":
    main()
