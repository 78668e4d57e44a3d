# SPDX-License-Identifier: Apache-2.0
"""What `fit` returns: the trained model, and how it is used on further DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gangline.engines.spark.rows.vectors import plain_columns
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.engines.result import JobResult

ROWS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained model."""

    model: torch.nn.Module
    """On the CPU, in evaluation mode; the model that was given to `fit` is as it was."""
    num_rows: int
    """How many rows it was trained on, in each epoch."""
    run_dir: Path
    """The folder with the event logs: `gangline report` reads it."""
    result: JobResult = field(repr=False)
    """How the job and each of its workers ended."""
    features: tuple[str, ...] | None = None
    width: int = 0
    """How many numbers the features of a row are; 0 where `fit` was given none."""

    def transform(self, frame: Any, *, column: str = "prediction") -> Any:
        """The DataFrame with one more column: what the model says of each row's features.

        A number where the model's output is one per row, else an array of numbers. As usual in Spark,
        nothing is computed before somebody asks for it.
        """
        features = self.features
        if features is None:
            raise UsageError(
                "transform needs to know the model's input: give fit(…, features=[…]), also beside a "
                "train function; or use fitted.model in a pandas_udf of your own"
            )
        missing = [name for name in features if name not in frame.columns]
        if missing:
            raise UsageError(
                f"transform needs the column {missing[0]!r}, which the model was trained on; the "
                f"DataFrame has {', '.join(frame.columns)}"
            )
        if column in frame.columns:
            raise UsageError(f"there is a column {column!r} already: name another by column=")
        predict = _predictor(frame, self.model, self.width)
        return frame.withColumn(column, predict(*plain_columns(frame, list(features))))


def _predictor(frame: Any, model: torch.nn.Module, width: int) -> Any:
    """The function of columns that Spark calls."""
    import pandas
    from pyspark.sql.functions import pandas_udf
    from pyspark.sql.types import ArrayType, FloatType

    with torch.no_grad():
        output = model(torch.zeros(2, width))
    is_number = output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1)
    if output.ndim not in (1, 2) or len(output) != 2:
        raise UsageError(
            f"the model's output for 2 rows has the shape {tuple(output.shape)}: transform takes one "
            "number, or one row of numbers, for each"
        )
    sent = frame.sparkSession.sparkContext.broadcast(model)

    def predict(batches: Iterator[Any]) -> Iterator[Any]:
        with torch.inference_mode():
            for columns in batches:  # of one column, Spark gives no tuple
                given = columns if isinstance(columns, tuple) else (columns,)
                found = predicted(sent.value, given)
                values = found.reshape(-1) if is_number else list(found)
                yield pandas.Series(values)

    # Spark goes by the annotations, and those of this file are text.
    several: Any = Iterator[tuple[pandas.Series, ...]]
    predict.__annotations__ = {"batches": several, "return": Iterator[pandas.Series]}
    return pandas_udf(predict, FloatType() if is_number else ArrayType(FloatType()))


def predicted(model: torch.nn.Module, columns: Any) -> np.ndarray:
    """What the model says of the rows of some columns, some thousand at a time."""
    parts = [_as_rows(values) for values in columns]
    x = torch.from_numpy(np.concatenate(parts, axis=1))
    pieces = [model(x[start : start + ROWS_AT_ONCE]) for start in range(0, len(x), ROWS_AT_ONCE)]
    if not pieces:
        return np.zeros((0,), dtype=np.float32)
    return torch.cat(pieces).float().numpy()


def _as_rows(values: Any) -> np.ndarray:
    """A column of numbers or of lists as float32, one row for each."""
    array = values.to_numpy()
    if array.dtype == object:
        array = (
            np.stack([np.asarray(one, dtype=np.float32) for one in array])
            if len(array)
            else (np.zeros((0, 1), dtype=np.float32))
        )
    rows: np.ndarray = array.astype(np.float32, copy=False)
    return rows.reshape(len(rows), -1)
