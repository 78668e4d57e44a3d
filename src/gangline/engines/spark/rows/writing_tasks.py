# SPDX-License-Identifier: Apache-2.0
"""What Spark's tasks do with a partition: write it where all read it, or send it to the driver.

What is wrong with the data is told as a result. An error would have Spark try the task again.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from gangline.engines.spark.rows.index import Part
from gangline.engines.spark.rows.writing import write_part
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PIECE_BYTES = 4 << 20


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a partition."""

    part: Part | None = None
    problem: str = ""
    """Why there is none."""


def into_folder(batches: Iterable[Any], *, folder: str, marker: str) -> Iterator[Any]:
    """Writes a partition into a folder that all machines share; what it says of it is one row."""
    place = Path(folder)
    if not (place / marker).is_file():
        host = socket.gethostname()
        problem = (
            f"the folder {folder} is another one on {host} than on the driver, or is not there: name "
            "one that all machines share (folder=…), or none, and the driver sends the rows around"
        )
        yield _row(told=Told(problem=problem))
        return
    yield _row(told=_write(batches, place))


def to_driver(batches: Iterable[Any]) -> Iterator[Any]:
    """Writes a partition to this machine, and passes the file on in pieces, as rows."""
    with tempfile.TemporaryDirectory(prefix="gangline-rows-") as folder:
        told = _write(batches, Path(folder))
        yield _row(told=told)
        if told.part is None or not told.part.num_rows:
            return
        with (Path(folder) / told.part.file).open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield _row(piece=piece)


SCHEMA = "told string, piece binary"


def _row(*, told: Told | None = None, piece: bytes | None = None) -> Any:
    said = None if told is None else msgspec.json.encode(told).decode()
    return pa.RecordBatch.from_arrays(
        [pa.array([said], pa.string()), pa.array([piece], pa.binary())], ["told", "piece"]
    )


def _write(batches: Iterable[Any], folder: Path) -> Told:
    context = TaskContext.get()
    assert context is not None
    try:
        part = write_part(
            batches,
            folder,
            partition=context.partitionId(),
            attempt=context.taskAttemptId(),
        )
    except UsageError as error:
        with contextlib.suppress(Exception):  # Spark wants its rows to be read
            for _ in batches:
                pass
        return Told(problem=str(error))
    return Told(part=part)
