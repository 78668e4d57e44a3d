# SPDX-License-Identifier: Apache-2.0
"""Compares contenders so that noise is not taken for a result.

    comparison = compare({"ddp": time_ddp, "gangline": time_gangline}, baseline="ddp", repeats=12)
    save("even_ddp", {"LeNet-5, 2 workers": comparison})

A contender is a function that does one measurement and returns its time in seconds (of one step,
say). In each block every contender runs twice: in a random order, and then in the reverse of it
(ABBA), so that a machine that slowly gets faster or slower favours nobody. Contenders are compared
within each block, to the baseline of the same block; the median of these paired ratios is the
result, and resampling the blocks gives its 95 % interval. The baseline also runs against itself:
what that pair shows is noise, and so is any difference that is not larger.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec
import numpy as np

RESULTS = Path(__file__).parent / "results"
NUM_RESAMPLES = 10_000

Contender = Callable[[], float]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A median and the bounds that hold it in 95 % of the resampled runs."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def holds(self, value: float) -> bool:
        """Whether the value is within the bounds."""
        return self.low <= value <= self.high


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one contender."""

    name: str
    samples_s: list[float]
    """One time per block: the mean of its two runs."""
    median_s: float
    iqr_s: float
    """The distance between the quartiles of the samples."""
    speedup: Interval
    """Time of the baseline over time of this contender, in the same block: above 1 is faster."""
    verdict: str
    extras: dict[str, float]
    """Other figures, by the heading of their column."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one run."""

    baseline: str
    rows: list[Row]
    """The baseline, the baseline again (the noise floor), and the others as given."""
    repeats: int
    warmup: int
    seed: int
    machine: dict[str, str | int | float]

    def row(self, name: str) -> Row:
        """The row of one contender."""
        return next(row for row in self.rows if row.name == name)

    @property
    def noise(self) -> Interval:
        """The speed-up of the baseline over itself: what it differs from 1 is noise."""
        return self.rows[1].speedup

    def with_extra(self, heading: str, values: Mapping[str, float]) -> Comparison:
        """The same with a further figure for the contenders that have one."""
        rows = [
            msgspec.structs.replace(row, extras={**row.extras, heading: values[row.name]})
            if row.name in values
            else row
            for row in self.rows
        ]
        return msgspec.structs.replace(self, rows=rows)

    def to_json(self) -> str:
        """Everything, samples included."""
        return msgspec.json.format(msgspec.json.encode(self)).decode()

    def to_markdown(self) -> str:
        """A table, and how it came about."""
        headings = list(dict.fromkeys(heading for row in self.rows for heading in row.extras))
        titles = ["contender", "median", "IQR", "speed-up [95 %]", "verdict", *headings]
        lines = [_cells(titles), _cells(["---"] * len(titles))]
        for row in self.rows:
            extras = [f"{row.extras[h]:.4g}" if h in row.extras else "" for h in headings]
            times = [_in_ms(row.median_s), _in_ms(row.iqr_s)]
            lines.append(_cells([row.name, *times, str(row.speedup), row.verdict, *extras]))
        facts = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        how = (
            f"{self.repeats} blocks of two runs each, random order and its reverse (seed "
            f"{self.seed}), after {self.warmup} warm-up runs. Speed-up: time of {self.baseline} "
            "over time of the contender in the same block."
        )
        return "\n".join([*lines, "", how, "", f"Machine: {facts}."])


def compare(
    contenders: Mapping[str, Contender],
    *,
    baseline: str,
    repeats: int = 10,
    warmup: int = 1,
    twin: Contender | None = None,
    seed: int = 0,
) -> Comparison:
    """Measures the contenders in alternation.

    `twin` is a second, separately started instance of the baseline, for the noise floor; without it
    the baseline itself is measured once more.
    """
    if baseline not in contenders:
        raise ValueError(f"the baseline {baseline!r} is none of {', '.join(contenders)}")
    if repeats < 2 or warmup < 0:
        raise ValueError(f"needs 2 repeats and 0 warm-ups at least, not {repeats} and {warmup}")
    machine = machine_facts()
    others = {name: run for name, run in contenders.items() if name != baseline}
    twin = twin or contenders[baseline]
    runs = {baseline: contenders[baseline], f"{baseline} (again)": twin, **others}
    for _ in range(warmup):
        for run in runs.values():
            run()
    samples = _measure(runs, repeats=repeats, rng=random.Random(seed))
    return Comparison(
        baseline=baseline,
        rows=_rows(samples, baseline=baseline, seed=seed),
        repeats=repeats,
        warmup=warmup,
        seed=seed,
        machine=machine,
    )


def _measure(
    runs: Mapping[str, Contender], *, repeats: int, rng: random.Random
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        order = rng.sample(list(runs), len(runs))
        first = {name: runs[name]() for name in order}
        second = {name: runs[name]() for name in reversed(order)}
        for name in runs:
            samples[name].append((first[name] + second[name]) / 2)
    return samples


def _rows(samples: dict[str, list[float]], *, baseline: str, seed: int) -> list[Row]:
    speedups = {
        name: paired_speedup(samples[baseline], own, seed=seed) for name, own in samples.items()
    }
    noise = speedups[f"{baseline} (again)"]
    rows = []
    for name, own in samples.items():
        lower, _, upper = statistics.quantiles(own, n=4, method="inclusive")
        is_reference = name in (baseline, f"{baseline} (again)")
        verdict = "noise floor" if name != baseline else "baseline"
        row = Row(
            name=name,
            samples_s=own,
            median_s=statistics.median(own),
            iqr_s=upper - lower,
            speedup=speedups[name],
            verdict=verdict if is_reference else judge(speedups[name], noise=noise),
            extras={},
        )
        rows.append(row)
    return rows


def paired_speedup(baseline: list[float], own: list[float], *, seed: int = 0) -> Interval:
    """The median of the paired ratios, with the 95 % interval of a bootstrap over the pairs."""
    ratios = np.asarray(baseline) / np.asarray(own)
    rng = np.random.default_rng(seed)
    picks = rng.integers(len(ratios), size=(NUM_RESAMPLES, len(ratios)))
    medians = np.median(ratios[picks], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return Interval(median=float(np.median(ratios)), low=float(low), high=float(high))


def judge(speedup: Interval, *, noise: Interval) -> str:
    """A difference counts when its interval leaves out 1 and it is larger than the noise floor's."""
    if speedup.holds(1.0) or noise.holds(speedup.median):
        return "no difference seen"
    return "faster" if speedup.median > 1 else "slower"


def machine_facts() -> dict[str, str | int | float]:
    """What a figure means little without."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "usable cores": len(os.sched_getaffinity(0)),
        "load before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "system": platform.platform(),
    }


def save(name: str, comparisons: Mapping[str, Comparison], *, folder: Path = RESULTS) -> str:
    """Writes `name.json` and `name.md`, and returns the Markdown; the keys become headings."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"## {title}\n\n{found.to_markdown()}" for title, found in comparisons.items()]
    markdown = f"# {name}\n\n" + "\n\n".join(parts) + "\n"
    encoded = msgspec.json.encode(dict(comparisons))
    (folder / f"{name}.json").write_bytes(msgspec.json.format(encoded))
    (folder / f"{name}.md").write_text(markdown, encoding="utf-8")
    return markdown


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(ln.split(":", 1)[1].strip() for ln in lines if ln.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _cells(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _in_ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
