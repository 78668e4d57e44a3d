# SPDX-License-Identifier: Apache-2.0
"""What `fit` was asked, checked before Spark computes anything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.engines.spark.rows.order import PARTITIONS
from gangline.engines.spark.training.state import check_model
from gangline.engines.spark.training.work import NUM_SENDERS, Work
from gangline.spec.config import RunConfig, SurvivalConfig
from gangline.spec.engines.engine import EngineConfig
from gangline.spec.errors import UsageError
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)
DEFAULT_RESULT = "1g"


def work_of(
    model: Any,
    *,
    train: Callable[..., Any] | None,
    loss: Callable[..., Any] | None,
    optimizer: Callable[..., Any] | None,
    features: str | Sequence[str] | None,
    label: str | None,
    epochs: int,
    batch: int,
    shuffle: bool | str,
    options: Mapping[str, Any] | None,
) -> Work:
    """What each worker does. Raises UsageError for what makes no sense."""
    check_model(model)
    names = (features,) if isinstance(features, str) else features
    if train is not None:
        pieces = {"loss": loss, "optimizer": optimizer, "options": options}
        beside = [name for name, given in pieces.items() if given is not None]
        if beside:
            raise UsageError(
                f"fit was given train and {beside[0]}: a train function has its own loop; leave one out"
            )
        if not callable(train):
            raise UsageError(f"train must be a function of model and rows, not {train!r}")
    else:
        _check_pieces(loss, names, label)
        if optimizer is None:
            import torch

            optimizer = torch.optim.Adam
    if epochs < 1 or batch < 1:
        raise UsageError(f"epochs and batch must be 1 or more, not {epochs} and {batch}")
    if not isinstance(shuffle, bool) and shuffle != PARTITIONS:
        raise UsageError(f'shuffle is True, False or "{PARTITIONS}", not {shuffle!r}')
    return Work(
        model=model,
        train=train,
        loss=loss,
        optimizer=optimizer,
        features=None if names is None else tuple(names),
        label=label,
        epochs=epochs,
        batch=batch,
        shuffle=shuffle,
        options=None if options is None else dict(options),
    )


def _check_pieces(loss: object, features: Sequence[str] | None, label: str | None) -> None:
    for name, given in {"loss": loss, "features": features, "label": label}.items():
        if given is None or given == ():
            raise UsageError(
                f"fit needs {name}: give loss, features and label, as in fit(df, model, "
                "loss=nn.MSELoss(), features=['x'], label='y'), or a train function"
            )
    if not callable(loss):
        raise UsageError(f"loss must be a function of output and label, not {loss!r}")


def config_of(
    config: RunConfig | None,
    *,
    sync: str | None,
    workers: int | None,
    min_workers: int,
    strict: bool,
    name: str | None,
) -> RunConfig:
    """The run's configuration: what was given, with what `fit` has arguments for."""
    # A worker that is killed alone, as for lack of memory, is no loss to Spark: its agent lives.
    given = config or RunConfig(survival=SurvivalConfig(respawn=True))
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be 1 or more, not {workers}")
    hosts = msgspec.structs.replace(
        given.hosts,
        min_workers=max(1, min_workers),
        max_workers=workers if workers is not None else given.hosts.max_workers,
    )
    if sync is not None:
        parse_sync(sync)
    exchange = given.exchange
    return msgspec.structs.replace(
        given,
        run=name or given.run,
        engine=EngineConfig(name="spark"),
        hosts=hosts,
        spark=msgspec.structs.replace(given.spark, strict=strict or given.spark.strict),
        exchange=exchange if sync is None else msgspec.structs.replace(exchange, sync=sync),
    )


def sizes_fit(context: Any, model: Any) -> None:
    """Refuses a model that Spark would not let come back. Raises UsageError."""
    size = check_model(model)
    text = context.getConf().get("spark.driver.maxResultSize", DEFAULT_RESULT)
    limit = parse_size(text)
    if limit and size > limit:
        raise UsageError(
            f"the model's state is {size >> 20} MiB, and a task may bring back {text} "
            "(spark.driver.maxResultSize): start the application with a larger one, such as "
            f"{(size >> 30) + 1}g; {NUM_SENDERS} workers send it"
        )


def parse_size(text: str) -> int:
    """A size as Spark writes it, in bytes; 0: no limit."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return 0
    return int(match[1]) * _UNITS[match[2].lower()]
