# SPDX-License-Identifier: Apache-2.0
"""What it costs a worker to be observed: event log, utilisation, unit spans and `gangline.log`.

    python benchmarks/observing.py                 # two workers, steps of about 15 ms: 3 minutes
    python benchmarks/observing.py --blocks 4      # a first look

Two workers train, and change between the contenders within one process, a block of steps each, in a
random order and then its reverse. `silent` writes nothing and looks at nothing; `events` writes the
event log; `all` is what a job does: the log, utilisation every second, when units are exchanged, and a
loss that is logged in every step. What is compared is the processor time of a step over all threads of
the worker, which is less noisy than its duration on a machine that does other things, too. The bar is
half a per cent. Beside it stands what the calls take by themselves, as a part of a worker's processor
time: that is seen on a busy machine, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from gangline.eventlog import EventWriter, log_path
from gangline.spec.event import StepDone
from gangline.testing import run_workers
from gangline.worker.telling.utilisation import Sampler
from harness import Interval, machine_facts, paired_speedup
from observing_worker import CONTENDERS, body
from paced_teams import table, write_results

WORKERS = 2
LIMIT = 0.005


def cost_of_calls(count: int = 2000) -> dict[str, float]:
    """Processor seconds of a line in the log, with its writing, and of a sample of utilisation."""
    sampler = Sampler(0)
    with tempfile.TemporaryDirectory() as name:
        log = EventWriter(log_path(Path(name), "worker 0"), run="bench", source="worker 0")
        began_s = time.process_time()
        for step in range(count):
            log.write(
                StepDone(
                    t=time.time(), worker=0, step=step, epoch=0, view=3, samples=64, start=step,
                    stop=step + 1, compute_s=0.0123456789, data_s=0.00123456789,
                    exchange_s=0.0023456789, update_s=0.000456789,
                )
            )  # fmt: skip
        log.close()
        line_s = (time.process_time() - began_s) / count
    began_s = time.process_time()
    for _ in range(count // 10):
        sampler.sample()
    return {
        "a line": line_s,
        "a sample of utilisation": (time.process_time() - began_s) * 10 / count,
    }


def cost(baseline: list[float], own: list[float]) -> Interval:
    """How much more than the baseline, as a part of it: the median over blocks, and its interval."""
    ratio = paired_speedup(own, baseline)
    return Interval(median=ratio.median - 1, low=ratio.low - 1, high=ratio.high - 1)


def _listed(parts: dict[str, float]) -> str:
    each = ", ".join(f"{name} {part:.2%}" for name, part in sorted(parts.items()))
    return f"{sum(parts.values()):.2%} ({each})"


def main() -> None:
    """Measures, prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=1024)
    given = parser.parse_args()
    facts, calls = machine_facts(), cost_of_calls()
    found = run_workers(
        body, WORKERS, args=(given.blocks, given.steps, given.hidden), deadline_s=3600
    )
    results, parts = zip(*found, strict=True)
    rows, data = [], {"machine": facts, "calls": calls, "parts": parts, "workers": results}
    for name in CONTENDERS:
        cells = []
        for which in (0, 1):
            silent = [row[which] for found in results for row in found["silent"]]
            own = [row[which] for found in results for row in found[name]]
            more = cost(silent, own)
            middle = sorted(own)[len(own) // 2]
            cells += [
                f"{middle * 1e3:.2f} ms",
                f"{more.median:+.2%} [{more.low:+.2%}, {more.high:+.2%}]",
            ]
        rows.append([name, *cells])
    head = ["contender", "processor time of a step", "more than silent [95 %]", "duration", "more"]
    lines = [f"{name}: {seconds * 1e6:.0f} µs" for name, seconds in calls.items()]
    how = f"{given.blocks} blocks of two runs of {given.steps} steps each, two workers. The bar: "
    own = "; ".join(_listed(one) for one in parts)
    note = f"{how}{LIMIT:.1%}. Of a worker's processor time the calls of `all` take {own}. One by one: "
    note += f"{', '.join(lines)}."
    machine = ", ".join(f"{name} {value}" for name, value in facts.items())
    write_results("observing", f"# observing\n\n{table(head, rows)}\n\n{note}\n\n{machine}\n", data)


if __name__ == "__main__":
    main()
