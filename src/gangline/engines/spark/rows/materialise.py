# SPDX-License-Identifier: Apache-2.0
"""Computes a DataFrame once, and writes it where every worker can read every row.

Two ways: executors write into a folder that all machines share; or they send what they have written
to the driver, which keeps it and hands it to Spark's own file server.
"""

from __future__ import annotations

import functools
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.engines.spark.checks import explained
from gangline.engines.spark.rows.index import RowIndex
from gangline.engines.spark.rows.vectors import plain_columns
from gangline.engines.spark.rows.writing_tasks import SCHEMA, Told, into_folder, to_driver
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gangline.engines.spark.rows.index import Part


def frame_of(data: Any) -> Any:
    """The DataFrame of what was given: an RDD's rows, tuples or dictionaries become one."""
    if hasattr(data, "mapInArrow"):
        return data
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    try:
        return session.createDataFrame(data)
    except Exception as error:
        raise UsageError(
            f"the RDD cannot be made a DataFrame ({str(error).splitlines()[0][:200]}): its elements "
            "must be Rows, tuples or dictionaries of plain values, all alike"
        ) from error


def chosen(frame: Any, columns: Sequence[str] | None) -> Any:
    """These columns; vectors of pyspark.ml become arrays."""
    names = list(dict.fromkeys(columns)) if columns is not None else list(frame.columns)
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise UsageError(
            f"there is no column {missing[0]!r}; the DataFrame has {', '.join(frame.columns)}"
        )
    if not names:
        raise UsageError("the DataFrame has no columns, so there is nothing to train on")
    return frame.select(plain_columns(frame, names))


def into_shared(frame: Any, folder: Path) -> RowIndex:
    """Has the executors write a DataFrame into a folder that all machines share."""
    marker = f".gangline-{secrets.token_hex(8)}"
    (folder / marker).touch()
    try:
        write = functools.partial(into_folder, folder=str(folder), marker=marker)
        answers = frame.mapInArrow(write, SCHEMA).collect()
    except Exception as error:
        raise explained(error) from error
    finally:
        (folder / marker).unlink(missing_ok=True)
    index = _index_of(msgspec.json.decode(row.told, type=Told) for row in answers)
    _remove_others(folder, index)
    return index


def through_driver(frame: Any, folder: Path) -> RowIndex:
    """Brings a DataFrame to a folder of this machine, one partition after the other."""
    parts: list[Told] = []
    file = None
    try:
        for row in frame.mapInArrow(to_driver, SCHEMA).toLocalIterator():
            if row.told is not None:
                if file is not None:
                    file.close()
                    file = None
                told = msgspec.json.decode(row.told, type=Told)
                parts.append(told)
                if told.part is not None and told.part.num_rows:
                    file = (folder / Path(told.part.file).name).open("xb")
            elif file is not None:
                file.write(row.piece)
    except Exception as error:
        raise explained(error) from error
    finally:
        if file is not None:
            file.close()
    return _index_of(parts)


def _index_of(answers: Iterable[Told]) -> RowIndex:
    parts: list[Part] = []
    for told in answers:
        if told.part is None:
            raise UsageError(told.problem)
        parts.append(told.part)
    return RowIndex.of(parts)


def _remove_others(folder: Path, index: RowIndex) -> None:
    """What attempts have written that do not count: those that failed, or came second."""
    listed = set(index.files)
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False) and entry.name not in listed:
            Path(entry.path).unlink(missing_ok=True)
