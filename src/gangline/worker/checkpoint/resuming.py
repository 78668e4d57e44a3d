# SPDX-License-Identifier: Apache-2.0
"""Going on from a checkpoint: rank 0 reads the newest good one, and all founders start from it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from gangline.spec.errors import GanglineError, LogError, MismatchError, UsageError
from gangline.spec.position import Position
from gangline.worker.checkpoint.state import RandomNumbers, restore
from gangline.worker.groups.snapshot import Snapshot
from gangline.worker.prepare.handshake import copy_value, describe_difference

if TYPE_CHECKING:
    from gangline.collectives import Group
    from gangline.worker.checkpoint.files import CheckpointFolder, Contents, Manifest
    from gangline.worker.gradients.carried import Values
    from gangline.worker.groups.regroup import Results
    from gangline.worker.prepare.handshake import Introduction
    from gangline.worker.prepare.prepared import Prepared

_ERRORS: dict[str, type[GanglineError]] = {
    kind.__name__: kind for kind in (LogError, MismatchError, UsageError)
}
_FREE = (
    *("gangline_version", "torch_version", "data_set_samples"),
    *("shares", "min_share", "sync_batchnorm"),
)
"""What may differ from the run that wrote the checkpoint."""
_WHAT_TO_DO = {
    "data_set_length": "give the same data set",
    "samples_per_epoch": "give the same data set and sampler",
    "data_of_workers": "start the same workers, each with the data that it had",
    "order": "give the loader the same sampler or shuffle=",
    "parameters": "build the same model",
    "buffers": "build the same model",
}


class Start(NamedTuple):
    """Where training begins, if not at its beginning."""

    position: Position
    seed: int
    """The seed of the epochs' order."""
    orders: Results
    """The order of the present epoch, where it was drawn and does not follow from the seed."""
    source: str
    """The checkpoint's path."""
    skipped: list[str]
    """Newer checkpoints that could not be used, and why."""
    gradients: Values | None
    """What the loop had carried over to the next batch."""
    random: RandomNumbers
    """Those of the worker that wrote it, for rank 0 only: the others have their own."""


class Source(NamedTuple):
    """The checkpoints that rank 0 may start from."""

    folder: CheckpointFolder
    is_resuming: bool


def agree_on_start(
    group: Group, source: Source | None, prepared: Prepared, *, introduction: Introduction
) -> Start | None:
    """Loads the newest good checkpoint on rank 0; all workers learn where it stands.

    Rank 0's parameters, optimizers and other state are still to be copied to the others. What rank 0
    raises, all raise.
    """
    start: Start | None = None
    told: dict[str, Any] = {}
    if group.rank == 0 and source is not None:
        try:
            start = _find_start(source, prepared, introduction)
        except (LogError, MismatchError, UsageError) as error:
            told = {"error": type(error).__name__, "message": str(error)}
    if start is not None:
        told = {**start._asdict(), "position": tuple(start.position)}
        del told["random"]
    told = copy_value(group, told, root=0)
    if "error" in told:
        raise _ERRORS[told["error"]](told["message"])
    if not told:
        return None
    _mark_stepped(prepared)
    position = Position(*told.pop("position"))
    return start or Start(position=position, random=RandomNumbers(), **told)


def _find_start(source: Source, prepared: Prepared, introduction: Introduction) -> Start | None:
    folder = source.folder
    if not source.is_resuming:
        _refuse_if_used(folder)
        return None
    if not folder.steps():
        return None
    skipped: list[str] = []
    for step in folder.agreed_steps():
        try:
            manifest, contents = folder.read(step)
            _compare(str(folder.path_of(step)), manifest.introduction, introduction)
            start = _load(folder, manifest, contents, prepared)
        except LogError as error:
            skipped.append(str(error))
            continue
        # From now on newer ones are of an abandoned branch. Where nothing can be written, the first
        # checkpoint will say so.
        with suppress(OSError):
            folder.move_latest(step)
        return start._replace(skipped=skipped)
    why = "; ".join(skipped) or "none was agreed on"
    raise LogError(
        f"none of the checkpoints in {folder.root} can be used: {why}. "
        "Bring an older one back, or give an empty folder to start anew"
    )


def _refuse_if_used(folder: CheckpointFolder) -> None:
    steps: list[int] = []
    with suppress(LogError):  # an unusable folder does not stop the training: it will be said later
        steps = folder.steps()
    if steps:
        raise UsageError(
            f"{folder.root} already holds checkpoints, the newest of step {steps[0]}: go on from it "
            "with `gangline run --resume` or prepare(…, resume=True), or give another folder"
        )


def _load(
    folder: CheckpointFolder, manifest: Manifest, contents: Contents, prepared: Prepared
) -> Start:
    path = str(folder.path_of(manifest.step))
    try:
        rest = restore(prepared, Snapshot(prepared), contents)
    except LogError as error:
        raise LogError(f"{path}: {error}") from error
    return Start(
        position=Position.at_start()._replace(
            step=manifest.step, epoch=manifest.epoch, start=manifest.start
        ),
        seed=manifest.seed,
        orders=rest["orders"],
        gradients=rest["gradients"],
        source=path,
        skipped=[],
        random=RandomNumbers(rest["random"], prepared.generators),
    )


def _mark_stepped(prepared: Prepared) -> None:
    """Tells schedulers that the steps were made, if not by this process: they would warn."""
    for optimizer in prepared.optimizers:
        optimizer._opt_called = True  # type: ignore[attr-defined]


def _compare(path: str, kept: Introduction, mine: Introduction) -> None:
    for name in (field for field in kept.__struct_fields__ if field not in _FREE):
        before, today = getattr(kept, name), getattr(mine, name)
        if before != today:
            raise MismatchError(
                f"this job differs from the checkpoint {path} in {name.replace('_', ' ')}: "
                f"{describe_difference(before, today)}. To do: "
                f"{_WHAT_TO_DO.get(name, 'call prepare() as then')}, or give another checkpoint folder"
            )
