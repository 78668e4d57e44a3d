# SPDX-License-Identifier: Apache-2.0
"""Results as bytes for the other nodes: numbers, texts, arrays, tensors, lists and dicts of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gangline.spec.errors import FunctionError, UnsupportedError
from gangline.worker.together.blobs import pack_blob, unpack_blob

_ARRAY, _SCALAR = "numpy array", "numpy number"


def pack_result(value: Any, *, rows: str) -> bytes:
    """Raises FunctionError, with the rows that it is of, where it cannot be sent."""
    try:
        return pack_blob(_marked(value))
    except (UnsupportedError, TypeError, ValueError) as error:
        raise FunctionError(
            f"the result of {rows} cannot be sent to the other nodes: {error}; return numbers, texts, "
            f"numpy arrays or torch tensors, or lists, tuples and dicts of these"
        ) from error


def unpack_result(blob: bytes) -> Any:
    """The value again."""
    return _unmarked(unpack_blob(blob, torch.device("cpu")))


def _marked(value: Any) -> Any:
    """The same, in which everything says what it was."""
    if isinstance(value, np.ndarray):
        return (_ARRAY, torch.from_numpy(np.array(value, order="C")))
    if isinstance(value, np.generic):
        return (_SCALAR, torch.from_numpy(np.array([value])))
    if type(value) in (list, tuple):
        return (type(value).__name__, [_marked(one) for one in value])
    if type(value) is dict:
        return ("dict", [[key, _marked(one)] for key, one in value.items()])
    return ("", value)


def _unmarked(value: Any) -> Any:
    kind, content = value
    if kind == _ARRAY:
        return content.numpy()
    if kind == _SCALAR:
        return content.numpy()[0]
    if kind in ("list", "tuple"):
        items = [_unmarked(one) for one in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {key: _unmarked(one) for key, one in content}
    return content
