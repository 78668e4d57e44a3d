# SPDX-License-Identifier: Apache-2.0
"""Writes a partition as an Arrow file: what runs in Spark's tasks, and needs nothing else of ours.

A file gets its name when it is complete. Several attempts at one partition write files of their own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.types as kinds

from gangline.engines.spark.rows.index import BINARY, NUMBER, TEXT, VECTOR, Column, Part
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

BATCH_BYTES = 16 << 20
"""A record batch of a file is about so large: finding a row costs a look at its batch."""
SUFFIX = ".arrow"


def write_part(
    batches: Iterable[Any], folder: Path, *, partition: int, attempt: int, prefix: str = "part"
) -> Part:
    """Writes the batches of a partition to one file, and says what is in it."""
    name = f"{prefix}-{partition:05d}-{attempt}{SUFFIX}"
    unfinished = folder / f".{name}.{os.getpid()}"
    rows: list[int] = []
    columns: list[Column] = []
    writer = None
    try:
        for table in _combined(batches):
            if writer is None:
                writer = pa.ipc.new_file(str(unfinished), table.schema)
            for batch in table.to_batches(max_chunksize=table.num_rows):
                writer.write_batch(batch)
                rows.append(batch.num_rows)
            columns = _merged(columns, described(table))
        if writer is not None:
            writer.close()
            unfinished.replace(folder / name)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return Part(partition=partition, file=name, rows=tuple(rows), columns=tuple(columns))


def described(table: Any) -> list[Column]:
    """What the columns of a table hold."""
    return [_column(field, table.column(field.name)) for field in table.schema]


def check_schema(schema: Any) -> None:
    """Refuses columns that can be no part of a sample. Raises UsageError."""
    for field in schema:
        _kind_of(field)


def _combined(batches: Iterable[Any]) -> Iterator[Any]:
    """Tables of one chunk of about `BATCH_BYTES`; none without rows."""
    waiting: list[Any] = []
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
        if sum(one.nbytes for one in waiting) >= BATCH_BYTES:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def _column(field: Any, values: Any) -> Column:
    kind, dtype = _kind_of(field)
    nulls = values.null_count
    width = 1
    if kind == VECTOR:
        lengths = pa.compute.list_value_length(values).drop_null()
        shortest, longest = pa.compute.min_max(lengths).as_py().values() if len(lengths) else (0, 0)
        if shortest != longest:
            raise UsageError(
                f"the lists in column {field.name!r} are not all as long ({shortest} to {longest} "
                "numbers): bring them to one length, as by pyspark.sql.functions.slice"
            )
        width = longest
        nulls += sum(chunk.flatten().null_count for chunk in values.chunks)
    return Column(name=field.name, kind=kind, dtype=dtype, width=width, nulls=nulls)


def _kind_of(field: Any) -> tuple[str, str]:
    kind = field.type
    if _is_number(kind):
        return NUMBER, _dtype(kind)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return TEXT, ""
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return BINARY, ""
    is_list = kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)
    if is_list and _is_number(kind.value_type) and not kinds.is_boolean(kind.value_type):
        return VECTOR, _dtype(kind.value_type)
    raise UsageError(
        f"column {field.name!r} is of type {kind}, which is no part of a sample: give numbers, lists "
        "of numbers, text or binary, as by df.withColumn(…, col.cast('double')), or choose others by "
        "columns="
    )


def _is_number(kind: Any) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind))


def _dtype(kind: Any) -> str:
    return "bool" if kinds.is_boolean(kind) else str(kind.to_pandas_dtype().__name__)


def _merged(before: Sequence[Column], now: Sequence[Column]) -> list[Column]:
    """The columns of a part that is written table by table."""
    if not before:
        return list(now)
    merged = []
    for one, other in zip(before, now, strict=True):
        if one.width != other.width:
            raise UsageError(
                f"the lists in column {one.name!r} are not all as long ({one.width} and "
                f"{other.width} numbers): bring them to one length, as by "
                "pyspark.sql.functions.slice"
            )
        merged.append(
            Column(
                name=one.name,
                kind=one.kind,
                dtype=one.dtype,
                width=one.width,
                nulls=one.nulls + other.nulls,
            )
        )
    return merged
