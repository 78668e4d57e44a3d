# SPDX-License-Identifier: Apache-2.0
"""What an attack on the coordinator costs a job: step time with and without it, in alternation.

    python benchmarks/flood.py
    python benchmarks/flood.py --repeats 6 --rate 500 --slow 200

One job of two workers trains all the time. The attack (see `gangline.testing.flooding`) goes to its
coordinator, or to that of another job, which has no workers: the difference between these two is
what the attack does to the job, and the rest is what the attacker takes of the machine.

How many steps a measurement has follows from how long one takes, so that all of it ends within five
minutes: 8 blocks of 8 measurements, each of 2 seconds and one more until the attack is under way.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from even_ddp import START_TIMEOUT_S, STEPS, TIMEOUT_S, WORKER, as_gangline_run
from gangline.engines.coordination import coordinator_process
from gangline.files.announcement import Announcement, read_announcement
from gangline.testing.flooding import Plan, flood
from harness import Comparison, Interval, compare, paired_speedup, save
from teams import Team
from training_worker import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gangline.engines.job import Job

MODEL = "lenet5"
WORKERS = 2
SETTLE_S = 0.5
"""Until the attack is under way."""
ATTACKED, ELSEWHERE = "attacked", "other attacked"


@contextlib.contextmanager
def coordinated(*, transport: str) -> Iterator[tuple[Job, str]]:
    """A job's coordinator, and its address."""
    with tempfile.TemporaryDirectory(prefix="gangline-bench-") as folder:
        job = as_gangline_run(Path(folder), workers=WORKERS, transport=transport)
        with coordinator_process(job, os.environ):
            deadline = time.monotonic() + START_TIMEOUT_S
            while not Announcement.path_in(job.run_dir).exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("the coordinator does not announce itself")
                time.sleep(0.05)
            yield job, read_announcement(job.run_dir).url


def environments(job: Job, *, batch: int) -> list[dict[str, str]]:
    """What each worker is to do."""
    return [
        {
            **Part(
                contender="gangline-wire",
                model=MODEL,
                batch=batch,
                rank=rank,
                workers=WORKERS,
                folder=str(job.run_dir),
                set_to_none=True,
            ).environment(),
            **launch.to_environment(),
        }
        for rank, launch in enumerate(job.launches())
    ]


def compare_attacks(options: argparse.Namespace) -> Comparison:
    """The same job: left alone, attacked, and beside another that is attacked."""
    with contextlib.ExitStack() as stack:
        job, url = stack.enter_context(coordinated(transport="wire"))
        _, elsewhere = stack.enter_context(coordinated(transport="wire"))
        team = stack.enter_context(
            Team(WORKER, environments=environments(job, batch=options.batch))
        )

        def measure_steps(steps: int, timeout_s: float = TIMEOUT_S) -> float:
            answers = team.ask({"steps": steps}, timeout_s=timeout_s)
            return float(max(answer["seconds"] for answer in answers)) / steps

        measure_steps(STEPS[MODEL], START_TIMEOUT_S)
        steps = max(STEPS[MODEL], round(options.seconds / measure_steps(STEPS[MODEL])))

        def measure() -> float:
            return measure_steps(steps)

        def attacked(target: str) -> Callable[[], float]:
            def measure_attacked() -> float:
                plan = Plan(url=target, rate_per_s=options.rate, slow=options.slow)
                with flood(plan):
                    time.sleep(SETTLE_S)
                    return measure()

            return measure_attacked

        return compare(
            {"quiet": measure, ATTACKED: attacked(url), ELSEWHERE: attacked(elsewhere)},
            baseline="quiet",
            repeats=options.repeats,
            warmup=1,
            seed=options.seed,
        )


def main() -> None:
    """Compares, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=8, help="blocks of two runs each")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement, about")
    parser.add_argument("--rate", type=float, default=200.0, help="connections per second")
    parser.add_argument("--slow", type=int, default=100, help="connections that never finish")
    parser.add_argument("--batch", type=int, default=64, help="samples per worker")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    title = f"{MODEL}, {WORKERS} workers, {options.rate:g} connections/s, {options.slow} slow ones"
    comparison = compare_attacks(options)
    print(save("flood", {title: comparison}))
    print(f"step time, attacked over quiet: {_ratio(comparison, 'quiet')}")
    print(f"step time, attacked over another job attacked: {_ratio(comparison, ELSEWHERE)}")


def _ratio(comparison: Comparison, calm: str) -> Interval:
    """How many times as long a step takes under attack, by blocks, with its 95 % interval."""
    attacked, other = comparison.row(ATTACKED), comparison.row(calm)
    return paired_speedup(attacked.samples_s, other.samples_s, seed=comparison.seed)


if __name__ == "__main__":
    main()
