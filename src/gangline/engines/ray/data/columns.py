# SPDX-License-Identifier: Apache-2.0
"""Columns of rows as bytes: numbers as they are in memory, everything else as JSON. No pickles."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from gangline.spec.errors import UsageError


def pack(columns: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """A description of each column, and their bytes one after the other."""
    described, parts = [], []
    for name, column in columns.items():
        values = np.ascontiguousarray(column)
        is_plain = values.dtype.kind in "biufc"
        data = values.tobytes() if is_plain else _as_json(name, values)
        kind = values.dtype.str if is_plain else "json"
        described.append([name, kind, list(values.shape), len(data)])
        parts.append(data)
    return {"columns": described}, b"".join(parts)


def unpack(described: list[list[Any]], data: bytes) -> dict[str, Any]:
    """Arrays, and lists of what is no number."""
    found: dict[str, Any] = {}
    start = 0
    for name, kind, shape, size in described:
        part = memoryview(data)[start : start + size]
        start += size
        if kind == "json":
            found[name] = msgspec.json.decode(part)
        else:
            # A copy: torch wants memory that can be written to.
            found[name] = np.frombuffer(part, dtype=kind).reshape(shape).copy()
    return found


def _as_json(name: str, values: np.ndarray[Any, Any]) -> bytes:
    try:
        return msgspec.json.encode(values.tolist())
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the column {name!r} holds what is neither number nor text ({error}): turn it into one of "
            "these by `dataset.map_batches(…)`, or leave it out by `dataset.drop_columns([…])`"
        ) from error
