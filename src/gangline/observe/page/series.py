# SPDX-License-Identifier: Apache-2.0
"""The lines of the page's charts, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gangline.observe.page.readings import METRICS
from gangline.observe.page.summed import MIDDLE

if TYPE_CHECKING:
    from gangline.observe.page.accounts import Accounts
    from gangline.observe.page.columns import Columns

MOST_LINES = 12
"""More lines than these cannot be told apart: then the lowest, the middle and the highest are shown."""

_SAID = {
    "cpu": ("processor of the worker", "cores"),
    "node_cpu": ("processor of the machine", "%"),
    "memory_bytes": ("memory of the worker", "bytes"),
    "node_memory": ("memory of the machine", "%"),
    "threads": ("threads of the worker", ""),
    "sent_bytes": ("sent by the machine, per second", "bytes"),
    "received_bytes": ("received by the machine, per second", "bytes"),
    "gpu": ("GPU", "%"),
    "gpu_memory_bytes": ("memory on the GPU", "bytes"),
}


def throughput_chart(accounts: Accounts, columns: Columns) -> dict[str, Any]:
    """Samples per second, against the sum of what the workers could compute."""
    fold = accounts.fold
    if fold.lanes.num_workers:
        return _lanes_throughput(accounts, columns)
    work, width = fold.work.sums, fold.work.width_s
    samples, compute = work[:, :, 0], work[:, :, 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = np.where(compute > 0, samples / compute * fold.work.block, 0.0)
    parts = rates.sum(axis=0)
    return {
        "x": columns.add((np.arange(work.shape[1]) + 0.5) * width, "f8"),
        "measured": columns.add(samples.sum(axis=0) / width),
        "parts": columns.add(np.where(parts > 0, parts, np.nan)),
    }


def _lanes_throughput(accounts: Accounts, columns: Columns) -> dict[str, Any]:
    fold = accounts.fold
    moments, _, took_s, samples, _ = fold.all_steps()
    work = fold.work.sums[MIDDLE]
    at = np.clip((moments / fold.work.width_s).astype(int), 0, len(work) - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = fold.lanes.num_workers * work[at, 0] / work[at, 1]
        measured = samples / took_s
    return {
        "x": columns.add(moments, "f8"),
        "measured": columns.add(measured),
        "parts": columns.add(rate),
    }


def share_chart(accounts: Accounts, columns: Columns) -> dict[str, Any] | None:
    """What part of the samples each worker computed; those with the least together."""
    fold = accounts.fold
    samples = fold.work.sums[:, :, 0]
    if fold.lanes.num_workers or not len(samples):
        return None
    total = samples.sum(axis=0)
    is_used = total > 0
    fractions = samples[:, is_used] / total[is_used]
    ranked = np.argsort(-samples.sum(axis=1), kind="stable")
    shown = sorted(int(row) for row in ranked[: MOST_LINES - 1])
    rest = [row for row in range(len(samples)) if row not in set(shown)]
    if len(rest) == 1:
        shown, rest = sorted([*shown, *rest]), []
    block = fold.work.block
    series = [
        {
            "label": accounts.name_of(row) if block == 1 else f"workers {row * block}–…",
            "values": columns.add(fractions[row]),
        }
        for row in shown
    ]
    if rest:
        values = columns.add(fractions[rest].sum(axis=0))
        series.append({"label": f"{len(rest)} others", "values": values})
    moments = (np.arange(len(total))[is_used] + 0.5) * fold.work.width_s
    return {"x": columns.add(moments, "f8"), "series": series}


def step_chart(accounts: Accounts, columns: Columns) -> dict[str, Any]:
    """How long steps took, and how long they should have taken by the plan that held."""
    moments, weights, took_s, samples, teams = accounts.fold.all_steps()
    planned = np.full(len(moments), np.nan)
    for mark in accounts.fold.happenings.of("plan"):
        planned[moments >= mark.x] = mark.numbers["step_s"] or np.nan
    numbers = sorted(set(teams.astype(int)))
    shown = numbers[:MOST_LINES]
    return {
        "x": columns.add(moments, "f8"),
        "measured": [
            {
                "label": "measured" if len(numbers) == 1 else f"team {team}",
                "values": columns.add(np.where(teams == team, took_s, np.nan)),
            }
            for team in shown
        ],
        "predicted": columns.add(planned) if np.isfinite(planned).any() else None,
        "samples": columns.add(np.cumsum(samples * weights), "f8"),
    }


def utilisation_charts(accounts: Accounts, columns: Columns) -> list[dict[str, Any]]:
    """A chart for each thing that was measured, with a line per worker."""
    fold = accounts.fold
    cells = fold.utilisation.cells
    charts = []
    for name, values in fold.utilisation.series():
        is_known = np.isfinite(values).any(axis=0)
        shown = values[:, is_known]
        title, unit = _SAID[name]
        charts.append(
            {
                "metric": name,
                "title": title,
                "unit": unit,
                "x": columns.add((np.arange(len(is_known))[is_known] + 0.5) * cells.width_s, "f8"),
                "series": _lines(accounts, columns, shown),
            }
        )
    assert len(charts) <= len(METRICS)
    return charts


def _lines(accounts: Accounts, columns: Columns, values: np.ndarray) -> list[dict[str, Any]]:
    told = [row for row in range(len(values)) if np.isfinite(values[row]).any()]
    if len(told) <= MOST_LINES:
        return [
            {"label": accounts.name_of(row), "values": columns.add(values[row])} for row in told
        ]
    edges = {
        "the lowest": np.nanmin(values, axis=0),
        "in the middle": np.nanmedian(values, axis=0),
        "the highest": np.nanmax(values, axis=0),
    }
    return [{"label": label, "values": columns.add(line)} for label, line in edges.items()]


def logged_charts(accounts: Accounts, columns: Columns) -> list[dict[str, Any]]:
    """What the script logged, over time and over samples."""
    fold = accounts.fold
    moments, weights, _, samples, _ = fold.all_steps()
    used = np.cumsum(samples * weights)
    charts = []
    for name, series in fold.curves.series.items():
        at, _, steps, values = series.columns()
        over = np.interp(at, moments, used) if len(used) else np.zeros(len(at))
        charts.append(
            {
                "name": name,
                "x": columns.add(at, "f8"),
                "samples": columns.add(over, "f8"),
                "steps": columns.add(steps, "u4"),
                "values": columns.add(values, "f8"),
            }
        )
    return charts
