# SPDX-License-Identifier: Apache-2.0
"""`gangline.spark.fit`: from a DataFrame and a model to a trained model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangline.engines.running import run_job
from gangline.engines.spark.checks import check_frame, check_packages
from gangline.launch import resolve
from gangline.launch.engines.agents import called
from gangline.launch.engines.kind import silent
from gangline.launch.engines.spark import settled, slots_for
from gangline.launch.program import Program
from gangline.spark.asked import config_of, sizes_fit, work_of
from gangline.spark.fitted import Fitted
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from gangline.engines.result import JobResult
    from gangline.engines.spark.rows.index import RowIndex
    from gangline.spec.config import RunConfig

TRAINEE = "gangline.engines.spark.training.trainee"
STRICT_TRIES = 3
"""In the strict form, a training that loses a task is begun so often."""


def fit(
    data: Any,
    model: torch.nn.Module,
    *,
    train: Callable[..., Any] | None = None,
    loss: Callable[..., Any] | None = None,
    optimizer: Callable[..., Any] | None = None,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    epochs: int = 1,
    batch: int = 256,
    shuffle: bool | str = True,
    sync: str | None = None,
    workers: int | None = None,
    min_workers: int = 1,
    folder: str | Path | None = None,
    strict: bool = False,
    name: str | None = None,
    run_dir: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    config: RunConfig | None = None,
) -> Fitted:
    """Trains a model on the rows of a DataFrame or RDD, by workers in the slots of its application.

    - `data`: a DataFrame, or an RDD of Rows, tuples or dictionaries. It is computed once, and written
      as Arrow files. Each row is used once per epoch, also where executors are lost on the way.
    - `model`: a torch.nn.Module, which stays as it is: a copy is trained.
    - `loss`, `optimizer`, `features`, `label`, `epochs`, `batch`, `shuffle`: our loop. The loss is a
      function of output and label; `optimizer` is called with the parameters (default: Adam); features
      and label are columns; `batch` is the global batch; `shuffle` is True, False or "partitions".
    - `train`: your loop instead, a function of the model and the rows: a data set of torch, with
      `rows.loader(batch_size)` for a fast DataLoader. It calls `gangline.prepare`, and is called after
      `gangline.init`. It may return the trained model. `columns` says which columns it gets.
    - `sync`: how tightly groups of workers are held together, as in `gangline.prepare`; "local(16)" is
      SparkNet's form. `options` are further arguments of `gangline.prepare`, for our loop.
    - `workers`: how many, at most (default: as many as there are slots); `min_workers`: with fewer,
      nothing is begun.
    - `folder`: a folder that all machines share, for the rows. Default: none is needed; the driver
      keeps the rows, and Spark brings a copy of them to each executor.
    - `strict`: one barrier stage, whose tasks are all started again where one is lost.
    - `name`, `run_dir`, `config`: as for `gangline run`.
    """
    check_packages()
    check_frame(data)
    from gangline.engines.spark.rows.materialise import chosen, frame_of
    from gangline.engines.spark.rows.placing import placed_rows
    from gangline.engines.spark.training.work import packed

    work = work_of(
        model,
        train=train,
        loss=loss,
        optimizer=optimizer,
        features=features,
        label=label,
        epochs=epochs,
        batch=batch,
        shuffle=shuffle,
        options=options,
    )
    asked = config_of(
        config, sync=sync, workers=workers, min_workers=min_workers, strict=strict, name=name
    )
    resolved = resolve(asked, is_described=False)
    needed = columns
    if columns is None and work.train is None:
        needed = [*(work.features or ()), *([] if label is None else [label])]
    frame = chosen(frame_of(data), needed)
    context = frame.sparkSession.sparkContext
    sizes_fit(context, model)
    sent = packed(work)
    count = slots_for(context, resolved)
    with placed_rows(frame, context, None if folder is None else Path(folder)) as found:
        index, place = found
        width = _width(index, work.features, work.label)
        for attempt in range(1, (STRICT_TRIES if strict else 1) + 1):
            state, result, where = _train(
                context, resolved, count, sent, index, place, run_dir=_numbered(run_dir, attempt)
            )
            if result.status == "done" or not _may_repeat(result, attempt, strict=strict):
                break
    _check(result, where)
    if not state:
        raise LaunchError(
            "everything was trained, and the trained state did not come back with the tasks' results: "
            f"see what Spark says of them; the events are in {where}"
        )
    trained = copy.deepcopy(model)
    from gangline.engines.spark.training.state import load_state

    load_state(trained, state)
    return Fitted(
        model=trained.cpu().eval(),
        num_rows=index.num_rows,
        run_dir=where,
        result=result,
        features=work.features,
        width=width,
    )


def _width(index: RowIndex, features: tuple[str, ...] | None, label: str | None) -> int:
    """How many numbers the features are. Raises UsageError for columns that can be none."""
    if features is None:
        return 0
    from gangline.engines.spark.rows.dataset import Rows

    return Rows(index, Path()).select(features, label).width


def _train(
    context: Any,
    config: RunConfig,
    count: int,
    work: bytes,
    index: RowIndex,
    place: str | None,
    *,
    run_dir: Path | None,
) -> tuple[bytes, JobResult, Path]:
    """One training: the state that came of it, how it ended, and its run folder."""
    from gangline.engines.spark.slots import SparkSlots

    program = Program("fit", (), module=TRAINEE)
    slots = SparkSlots(
        context,
        count,
        is_strict=config.spark.strict,
        work=work,
        index=index,
        folder=place,
        prefix=config.run or "gangline.spark.fit",
    )
    with called(
        settled(config, context, count), program, run_dir=run_dir, tell=silent, slots=slots
    ) as found:
        result = run_job(found.job, make_engine=found.make_engine)
        if result.status == "done":
            slots.finish()
    states = slots.states
    return (states[0] if states else b""), result, found.job.run_dir


def _numbered(run_dir: str | Path | None, attempt: int) -> Path | None:
    if run_dir is None:
        return None
    return Path(run_dir) if attempt == 1 else Path(f"{run_dir}-{attempt}")


def _may_repeat(result: JobResult, attempt: int, *, strict: bool) -> bool:
    """Whether the loss of tasks, and nothing else, has ended a training in the strict form."""
    is_lost = result.cause is None or result.cause.is_lost or result.cause.signal is not None
    return strict and is_lost and attempt < STRICT_TRIES and result.interrupted_by is None


def _check(result: JobResult, run_dir: Path) -> None:
    if result.interrupted_by is not None:
        raise KeyboardInterrupt
    if result.status != "done":
        traceback = "" if result.cause is None else f"\n\n{result.cause.traceback or ''}".rstrip()
        raise LaunchError(
            f"the training {result.status}: {result.reason}; what its workers have written is in "
            f"{run_dir / 'workers'}{traceback}"
        )
