# SPDX-License-Identifier: Apache-2.0
"""What is kept in a file after every epoch, so that a run that was killed goes on from there.

A cut is consistent in every mode: the model, and exactly those rows that are in it. What was on its
way is in neither, and is computed again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gangline.files.plainfile import read_plain, replace_plain
from gangline.paramserver.functional.ledger import Done
from gangline.paramserver.functional.result import Epoch, Tally
from gangline.spec.errors import LogError, UsageError

if TYPE_CHECKING:
    from gangline.paramserver.functional.arguments import Settings
    from gangline.paramserver.functional.leaves import Form, Leaves, Shape

_FORMAT = "gangline paramserv 1"


class Kept(msgspec.Struct, kw_only=True):
    """The content of the file."""

    format: str = _FORMAT
    plan: dict[str, str]
    """What must be the same for the rest of the run."""
    arrays: list[bytes]
    done: Done
    tally: Tally
    history: list[Epoch]
    seconds: float


class Keeper:
    """Reads and writes the file of one run."""

    def __init__(self, path: str | Path, settings: Settings, form: Form, *, rows: int) -> None:
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"checkpoint={path!r}: give the path of a file")
        self._path = Path(path)
        self._form = form
        self._epochs = settings.epochs
        if not self._path.parent.is_dir():
            raise UsageError(f"checkpoint={str(path)!r}: its folder does not exist; make it first")
        asked = {name: getattr(settings, name) for name in _PLANNED}
        asked |= {"mode": settings.named_mode, "rows": rows}
        shapes = ", ".join(str(shape) for shape in form.shapes)
        self._plan = {name: str(value) for name, value in asked.items()} | {"model": shapes}

    def read(self) -> Kept | None:
        """What an earlier process has left, or None. Raises an error if it does not fit."""
        try:
            kept = msgspec.msgpack.decode(read_plain(self._path), type=Kept)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise LogError(
                f"the checkpoint {self._path} cannot be read: {error}; delete it, or name another file"
            ) from error
        if kept.format != _FORMAT:
            raise LogError(f"{self._path} is {kept.format!r}, not {_FORMAT!r}; name another file")
        for name, value in self._plan.items():
            if kept.plan.get(name) != value:
                raise UsageError(
                    f"the checkpoint {self._path} was made with {name}={kept.plan.get(name)}, and this "
                    f"run has {name}={value}; call it as before, or name another file"
                )
        if len(kept.done.epochs) > self._epochs:
            raise UsageError(
                f"the checkpoint {self._path} is of {len(kept.done.epochs)} epochs, and epochs="
                f"{self._epochs} is less; give more epochs, or name another file"
            )
        return kept

    def write(self, model: Leaves, kept_of: dict[str, Any]) -> None:
        """Puts a new file in the place of the old one, in one piece."""
        kept = Kept(plan=self._plan, arrays=[_bytes_of(leaf) for leaf in model], **kept_of)
        replace_plain(self._path, msgspec.msgpack.encode(kept))

    def leaves(self, kept: Kept, like: Leaves) -> Leaves:
        """The model in the file, as arrays like those that the user gave."""
        shapes = self._form.shapes
        try:
            triples = zip(kept.arrays, shapes, like, strict=True)
            return [_array_of(data, shape, leaf) for data, shape, leaf in triples]
        except (ValueError, RuntimeError) as error:
            raise LogError(
                f"the checkpoint {self._path} is damaged: {error}; delete it, or name another file"
            ) from error


_PLANNED = (*("frequency", "scheme", "workers", "batch_size", "average", "reduction", "seed"),)


def _bytes_of(leaf: Any) -> bytes:
    if isinstance(leaf, np.ndarray):
        return leaf.tobytes()
    import torch  # the user's model is of it

    flat = leaf.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def _array_of(data: bytes, shape: Shape, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return np.frombuffer(data, dtype=like.dtype).reshape(shape.shape).copy()
    import torch  # the user's model is of it

    if not data:
        return torch.empty(shape.shape, dtype=like.dtype, device=like.device)
    flat = torch.frombuffer(bytearray(data), dtype=like.dtype)
    return flat.reshape(shape.shape).to(like.device)
