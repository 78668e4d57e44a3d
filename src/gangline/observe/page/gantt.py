# SPDX-License-Identifier: Apache-2.0
"""The Gantt chart's data: sums per worker and span of time, and some steps in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gangline.observe.page.detail import FIELDS
from gangline.observe.page.summed import NAMES
from gangline.observe.page.totals import SPENT

if TYPE_CHECKING:
    from gangline.observe.page.accounts import Accounts
    from gangline.observe.page.columns import Columns

_US_PER_S = 1e6
_TIMES = ("data", "compute", "wait", "exchange", "update")


def gantt_model(accounts: Accounts, columns: Columns) -> dict[str, Any]:
    """What `gangline.gantt` draws."""
    fold = accounts.fold
    cells = fold.spans
    sums = cells.sums
    parts = np.clip(np.round(sums / (cells.width_s * cells.block) * 255), 0, 255)
    return {
        "length": fold.length_s,
        "width": cells.width_s,
        "bins": int(sums.shape[1]),
        "kinds": list(SPENT),
        "rows": _rows(accounts, len(sums)),
        "block": cells.block,
        # One channel after the other: alike numbers side by side are deflated best.
        "cells": columns.add(parts.transpose(0, 2, 1), "u1"),
        "detail": _detail(accounts, columns),
        "units": _units(accounts, columns),
        "absences": [
            {
                "row": one.worker // cells.block,
                "begin": one.begin - (fold.origin or 0.0),
                "end": one.end - (fold.origin or 0.0),
                "why": one.why,
            }
            for one in fold.presence.absences
            if cells.block == 1
        ],
        "is_cut": fold.detail.is_cut,
    }


def _rows(accounts: Accounts, count: int) -> list[dict[str, Any]]:
    fold, block = accounts.fold, accounts.fold.spans.block
    if fold.lanes.num_workers:
        return [{"label": name} for name in NAMES[:count]]
    if block > 1:
        return [{"label": f"workers {row * block}–{(row + 1) * block - 1}"} for row in range(count)]
    return [{"label": accounts.name_of(worker), "worker": worker} for worker in range(count)]


def _detail(accounts: Accounts, columns: Columns) -> dict[str, Any]:
    """The steps in full, by worker and time; durations in microseconds."""
    records = dict(zip(FIELDS, accounts.fold.detail.records(), strict=True))
    block = accounts.fold.spans.block
    kept = {
        "row": columns.add(records["worker"] // block, "u2"),
        "step": columns.add(records["step"], "u4"),
        "end": columns.add(records["end"], "f8"),
        "samples": columns.add(records["samples"], "u4"),
    }
    for name in _TIMES:
        kept[name] = columns.add(np.round(records[name].clip(0, 4e3) * _US_PER_S), "u4")
    return kept


def _units(accounts: Accounts, columns: Columns) -> dict[str, Any]:
    """The units of a gradient; times in microseconds since the step's batch was handed out."""
    names = ("worker", "step", "unit", "ready", "begin", "end")
    told = dict(zip(names, accounts.fold.detail.units(), strict=True))
    kept = {"row": columns.add(told["worker"], "u4"), "step": columns.add(told["step"], "u4")}
    kept["unit"] = columns.add(told["unit"], "u4")
    for name in names[3:]:
        kept[name] = columns.add(np.round(told[name].clip(0, 4e3) * _US_PER_S), "u4")
    return kept
