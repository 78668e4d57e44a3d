# SPDX-License-Identifier: Apache-2.0
"""Columns as Arrow knows them: the vectors of pyspark.ml become arrays of float32."""

from __future__ import annotations

from typing import Any


def plain_columns(frame: Any, names: list[str]) -> list[Any]:
    """These columns of a DataFrame, under their names, without vectors."""
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    return [_plain(frame[f"`{name}`"], kinds[name]).alias(name) for name in names]


def _plain(column: Any, kind: Any) -> Any:
    if type(kind).__name__ != "VectorUDT":
        return column
    from pyspark.ml.functions import vector_to_array

    return vector_to_array(column, "float32")
