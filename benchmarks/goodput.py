# SPDX-License-Identifier: Apache-2.0
"""What a run with one kill every 15 seconds is worth, against the same run without any.

    python benchmarks/goodput.py                   # 10 minutes of kills, and 5 minutes of none
    python benchmarks/goodput.py --short           # 45 seconds and 30

`gangline run --respawn` with equal workers, paced so that they fit the cores. A run without faults
comes before the one with kills, and another after it. Time is cut into windows of one kill each;
goodput is the samples per second that the committed steps of a window used. The ratio is that of the
means, with the 95 % interval of a bootstrap over the windows. That no sample is lost or used twice is
read from the ledger of each run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from elastic_worker import STOP_FILE, Part
from gangline.cli.live.cmd_chaos import find_victims
from gangline.observe.ledger import read_ledger
from gangline.spec.errors import GanglineError
from gangline.spec.event import Decision, Regrouped, StepDone
from harness import NUM_RESAMPLES, Interval, machine_facts
from paced_teams import table, write_results
from teams import end
from tormented_jobs import SCRIPT, EventTail, Spread, exit_on_sigterm, paced_speed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gangline.spec.event import AnyEvent

GOAL = 0.90
SAMPLES_PER_WORKER = 16
STEPS_PER_EPOCH = 100
MAX_KILLS = 1000
SETTLING_STEPS = 40
"""At first the shares are found; these steps are in no window."""
START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 120.0


class Tormented(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what it committed, and what was done to it."""

    workers: int
    seconds: float
    windows: list[float]
    """Samples per second of the committed steps in each window."""
    kills_s: list[float]
    """When workers were killed, since the start of the first window."""
    num_respawned: int
    away_s: list[float]
    """From each kill until a newcomer had made a step in its place."""
    pauses_s: list[float]
    """From each kill until the first step without the victim."""
    capacity: float
    """The mean number of members over the windows, as a fraction of the workers."""
    epochs: int
    problems: list[str]
    """What the ledger says was lost or used twice."""


class Run:
    """A `gangline run` beside this process."""

    def __init__(self, folder: Path, *, workers: int) -> None:
        self.run_dir = folder / "run"
        self._folder = folder
        batch = SAMPLES_PER_WORKER * workers
        self.part = Part(
            kind="gangline",
            folder=str(folder),
            global_batch=batch,
            epoch_samples=batch * STEPS_PER_EPOCH,
        )
        speed = paced_speed(workers)
        command = [sys.executable, "-m", "gangline.cli.main", "run", "--json"]
        command += ["--speeds", ",".join([f"{speed:.6f}"] * workers)]
        command += ["--respawn", "--max-respawns", str(MAX_KILLS)]
        command += ["--run-dir", str(self.run_dir), str(SCRIPT)]
        with (folder / "output").open("wb") as output:
            self._child = subprocess.Popen(
                command,
                env={**os.environ, **self.part.environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.tail = EventTail(self.run_dir)

    def await_step(self, step: int) -> None:
        """Waits until a worker has made that step."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not any(isinstance(e, StepDone) and e.step >= step for e in self.tail.events):
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the run did not come to step {step}: {self._said()}")
            time.sleep(0.1)
            self.tail.read()

    def finish(self) -> None:
        """Lets the run end with its epoch."""
        (self._folder / STOP_FILE).touch()
        try:
            code = self._child.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the run did not end: {self._said()}") from None
        if code != 0:
            raise RuntimeError(f"the run ended with code {code}: {self._said()}")
        self.tail.read()

    def close(self) -> None:
        """Ends the run, if it has not ended: its launcher leaves nobody behind."""
        if self._child.poll() is None:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(10.0)
        end(self._child)

    def _said(self) -> str:
        return (self._folder / "output").read_text(encoding="utf-8", errors="replace")[-2000:]


@contextlib.contextmanager
def started(*, workers: int) -> Iterator[Run]:
    """A run that has found its shares."""
    with tempfile.TemporaryDirectory(prefix="gangline-bench-") as folder:
        run = Run(Path(folder), workers=workers)
        try:
            run.await_step(SETTLING_STEPS)
            yield run
        finally:
            run.close()


def torment(
    workers: int, *, seconds: float, every_s: float, is_killing: bool, seed: int
) -> Tormented:
    """A run of so many seconds, with a kill in the middle of each window, or none."""
    rng = random.Random(seed)
    count = round(seconds / every_s)
    kills: list[tuple[float, int]] = []
    with started(workers=workers) as run:
        began_s = time.time()
        for window in range(count):
            time.sleep(max(0.0, began_s + (window + 0.5) * every_s - time.time()))
            if is_killing:
                kills += kill_one(run.run_dir, rng)
        time.sleep(max(0.0, began_s + count * every_s - time.time()))
        run.finish()
        edges = began_s + every_s * np.arange(count + 1)
        return conclude(run, workers=workers, edges=edges, kills=kills)


def kill_one(run_dir: Path, rng: random.Random) -> list[tuple[float, int]]:
    """Kills a worker; when, and which. Nobody if only one is left."""
    try:
        victims = find_victims(run_dir)
    except GanglineError:
        return []
    if len(victims) < 2:
        return []
    victim = rng.choice(victims)
    killed_s = time.time()
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, signal.SIGKILL)
        return [(killed_s, victim.worker)]
    return []


def conclude(
    run: Run, *, workers: int, edges: NDArray[np.float64], kills: Sequence[tuple[float, int]]
) -> Tormented:
    """What the run's events say about the windows between these times."""
    events = sorted(run.tail.events, key=lambda event: event.t)
    ledger = read_ledger(events)
    committed_s = {e.step: e.t for e in events if isinstance(e, StepDone)}
    used, _ = np.histogram(
        [committed_s[window.step] for window in ledger.windows],
        bins=edges,
        weights=[window.stop - window.start for window in ledger.windows],
    )
    respawned = [e for e in events if isinstance(e, Decision) and e.what == "respawn"]
    return Tormented(
        workers=workers,
        seconds=float(edges[-1] - edges[0]),
        windows=(used / np.diff(edges)).tolist(),
        kills_s=[float(at - edges[0]) for at, _ in kills],
        num_respawned=len(respawned),
        away_s=_replaced_after(events, kills),
        pauses_s=[p for at, victim in kills if (p := _pause(events, at, victim)) is not None],
        capacity=_capacity(events, float(edges[0]), float(edges[-1])) / workers,
        epochs=ledger.num_epochs,
        problems=ledger.problems(length=run.part.epoch_samples),
    )


def _replaced_after(events: Sequence[AnyEvent], kills: Sequence[tuple[float, int]]) -> list[float]:
    """For each victim: from the kill until the first step of who was started in its place."""
    places = {
        int(e.numbers["of"] or 0): int(e.numbers["worker"] or 0)
        for e in events
        if isinstance(e, Decision) and e.what == "respawn"
    }
    firsts: dict[int, float] = {}
    for event in events:
        if isinstance(event, StepDone):
            firsts.setdefault(event.worker, event.t)
    newcomers = [(at, places.get(victim, -1)) for at, victim in kills]
    return [firsts[newcomer] - at for at, newcomer in newcomers if newcomer in firsts]


def _pause(events: Sequence[AnyEvent], killed_s: float, victim: int) -> float | None:
    """From a kill until the first step without the victim."""
    later = [event for event in events if event.t >= killed_s]
    without = (e.view for e in later if isinstance(e, Regrouped) and victim not in e.members)
    view = next(without, None)
    if view is None:
        return None
    steps = (e.t - killed_s for e in later if isinstance(e, StepDone) and e.view >= view)
    return next(steps, None)


def _capacity(events: Sequence[AnyEvent], began_s: float, ended_s: float) -> float:
    """The mean number of members between two times."""
    changes = [(e.t, len(e.members)) for e in events if isinstance(e, Regrouped)]
    steps = {e.worker for e in events if isinstance(e, StepDone) and e.t < began_s}
    total, at, members = 0.0, began_s, len(steps)
    for t, count in changes:
        if t >= ended_s:
            break
        if t > at:
            total += members * (t - at)
            at = t
        members = count
    return (total + members * (ended_s - at)) / (ended_s - began_s)


def ratio_of(tormented: Sequence[float], calm: Sequence[float], *, seed: int = 0) -> Interval:
    """The ratio of the means, with the 95 % interval of a bootstrap over the windows."""
    rng = np.random.default_rng(seed)
    a, b = np.asarray(tormented), np.asarray(calm)
    ratios = rng.choice(a, (NUM_RESAMPLES, len(a))).mean(axis=1) / rng.choice(
        b, (NUM_RESAMPLES, len(b))
    ).mean(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Interval(median=float(a.mean() / b.mean()), low=float(low), high=float(high))


def describe(runs: dict[str, Tormented], *, every_s: float, facts: str) -> str:
    """All of it as Markdown."""
    calm = [rate for name, run in runs.items() if name != "kills" for rate in run.windows]
    found = runs["kills"]
    ratio = ratio_of(found.windows, calm)
    verdict = "met" if ratio.median >= GOAL else "MISSED"
    rows = [
        [
            name,
            f"{run.seconds:.0f}",
            f"{np.mean(run.windows):.1f}",
            f"{min(run.windows):.1f} to {max(run.windows):.1f}",
            len(run.kills_s),
            run.num_respawned,
            f"{run.capacity:.3f}",
            run.epochs,
            len(run.problems),
        ]
        for name, run in runs.items()
    ]
    headings = ["run", "seconds", "samples/s", "of its windows", "kills", "respawned"]
    headings += ["members, of all", "epochs", "samples lost or used twice"]
    return "\n\n".join(
        [
            "# goodput",
            f"**{ratio}** of the faultless rate with one kill every {every_s:g} s "
            f"({found.workers} workers, goal {GOAL}: {verdict}).",
            table(headings, rows),
            f"After a kill the next step came within {_spread(found.pauses_s)}; the victim's place "
            f"was taken after {_spread(found.away_s)}.",
            *(f"- {problem}" for run in runs.values() for problem in run.problems[:5]),
            f"Machine: {facts}.\n",
        ]
    )


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "(none)"
    spread = Spread.of(values)
    return (
        f"{spread.median:.2f} s (median; 95 % within {spread.p95:.2f} s, at most "
        f"{spread.greatest:.2f} s)"
    )


def main() -> None:
    """Measures, prints, and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600.0, help="of the run with kills")
    parser.add_argument("--calm-seconds", type=float, default=150.0, help="of each run without")
    parser.add_argument("--every-s", type=float, default=15.0, help="between two kills")
    parser.add_argument("--short", action="store_true", help="45 seconds of kills, 30 of none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="goodput", help="of the files in results/")
    options = parser.parse_args()
    exit_on_sigterm()
    if options.short:
        options.seconds, options.calm_seconds = 45.0, 15.0
    machine = machine_facts()
    lengths = {"before": options.calm_seconds, "kills": options.seconds}
    lengths["after"] = options.calm_seconds
    runs = {}
    for name, seconds in lengths.items():
        runs[name] = torment(
            options.workers,
            seconds=seconds,
            every_s=options.every_s,
            is_killing=name == "kills",
            seed=options.seed,
        )
        print(f"{name}: {np.mean(runs[name].windows):.1f} samples/s", flush=True)
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    markdown = describe(runs, every_s=options.every_s, facts=facts)
    write_results(options.name, markdown, {"machine": machine, "runs": runs})


if __name__ == "__main__":
    main()
