# SPDX-License-Identifier: Apache-2.0
"""What `fit` asks of its workers, as it travels: through Spark, as the closure of any task does."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.engines.spark.rows.index import RowIndex
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FOLDER_VARIABLE = "GANGLINE_SPARK_FOLDER"
"""Names the private folder of a task, in which its workers find what follows."""
WORK_FILE = "work.pickle"
ROWS_FILE = "rows.json"
STATE_FILE = "state.safetensors"
NUM_SENDERS = 2
"""So many workers leave the trained state, in case that the first one is lost at the last moment."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A model, and how it is trained: by a function of the user's, or by our own loop."""

    model: Any
    train: Callable[..., Any] | None = None
    loss: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    features: tuple[str, ...] | None = None
    label: str | None = None
    epochs: int = 1
    batch: int = 256
    shuffle: bool | str = True
    options: dict[str, Any] | None = None
    """Further arguments of `gangline.prepare`."""


class RowsPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker finds the rows."""

    index: RowIndex
    folder: str


def packed(work: Work) -> bytes:
    """The work as bytes. Raises UsageError where it cannot be sent."""
    from pyspark import cloudpickle

    try:
        return bytes(cloudpickle.dumps(work))
    except Exception as error:
        raise UsageError(
            f"the model, or a function given to fit, cannot be sent to the executors ({error}): leave "
            "out what holds open files, locks or the SparkContext, and make it where it is used"
        ) from error


def unpacked(folder: Path) -> Work:
    """The work that a task has put into its folder."""
    work: Work = pickle.loads((folder / WORK_FILE).read_bytes())
    return work


def read_rows(folder: Path) -> RowsPlace:
    """Where the rows are, as the task has found out."""
    return msgspec.json.decode((folder / ROWS_FILE).read_bytes(), type=RowsPlace)
