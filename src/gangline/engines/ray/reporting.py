# SPDX-License-Identifier: Apache-2.0
"""What the function of a GanglineTrainer may call: its data, its reports, its checkpoint."""

from __future__ import annotations

import numbers
import pickle
import uuid
from typing import TYPE_CHECKING, Any

from gangline.engines.ray.data.rows import RayRows
from gangline.engines.ray.loop import present
from gangline.engines.ray.results import SERVICE
from gangline.engines.ray.services.client import client
from gangline.spec.errors import UsageError
from gangline.worker.api import is_main
from gangline.worker.job import job

if TYPE_CHECKING:
    from collections.abc import Mapping


def get_dataset_shard(name: str = "train") -> RayRows:
    """The data set of that name, which `datasets=` of the trainer has.

    All workers are given the same one: which of its rows are whose is decided while they train.
    """
    present()
    return RayRows(name)


def get_checkpoint() -> Any:
    """The `ray.train.Checkpoint` that the trainer was given to go on from; None: there is none."""
    return present().checkpoint


def report(metrics: Mapping[str, Any], *, checkpoint: Any = None) -> None:
    """Tells the trainer how it goes, with a `ray.train.Checkpoint` if there is a new one.

    All workers may call it; what the main worker says counts, and only its checkpoint is kept. It is in
    the storage path when this returns.
    """
    loop = present()
    told = {str(name): _plain(name, value) for name, value in metrics.items()}
    if not is_main():
        return
    name = ""
    if checkpoint is not None:
        name = f"checkpoint_{uuid.uuid4().hex[:12]}"
        _upload(checkpoint, f"{loop.storage}/{name}", loop.filesystem)
    answer, _ = client.ask(SERVICE, "report", metrics=told, checkpoint=name)
    for old in answer["obsolete"]:
        loop.filesystem.delete_dir(f"{loop.storage}/{old}")


def report_value(value: Any) -> None:
    """What the function returned; the main worker's is the result's."""
    if value is None or job.session is None or not is_main():
        return
    client.ask(SERVICE, "value", pickle.dumps(value))


def _upload(checkpoint: Any, path: str, filesystem: Any) -> None:
    from pyarrow import fs

    filesystem.create_dir(path, recursive=True)
    fs.copy_files(
        checkpoint.path,
        path,
        source_filesystem=checkpoint.filesystem,
        destination_filesystem=filesystem,
    )


def _plain(name: str, value: Any) -> Any:
    """A number, a text or a truth value; tensors and arrays with one number are turned into it."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise UsageError(
        f"the metric {name!r} is a {type(value).__name__}: report numbers, texts or truth values"
    )
