# SPDX-License-Identifier: Apache-2.0
"""Workers that compute on devices of several kinds, such as GPUs beside processors.

Each kind has a queue of its own, from which the others steal when theirs is empty. A function is told
by `device=` what it is to compute on.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from gangline.scheduling import Layout
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

Devices: TypeAlias = Mapping[str, int] | str | None
"""How many workers there are of each kind, or "all"."""

_PROCESSOR = "cpu"
_ALL = "all"


def named_devices(
    devices: Any, *, workers: int | None, layout: str, processors: int
) -> tuple[str, ...]:
    """The device of each worker: "cuda:0", "cuda:1", "cpu", "cpu"; none where none are asked for."""
    if devices is None:
        return ()
    if workers is not None:
        raise UsageError(
            f"workers={workers} beside devices: devices says how many workers there are"
        )
    if layout not in (Layout.CENTRALIZED, Layout.PERGROUP):  # the default, and what it comes to
        raise UsageError(f"layout={layout!r} beside devices: each kind of device has one queue")
    counts = _found(processors) if devices == _ALL else devices
    if not isinstance(counts, Mapping) or not counts or not all(map(_is_kind, counts.items())):
        raise UsageError(
            f"devices={devices!r}: give how many workers each kind of device has, such as "
            f"{{'cuda': 1, 'cpu': 6}}, or {_ALL!r}"
        )
    return tuple(
        kind if kind == _PROCESSOR else f"{kind}:{number}"
        for kind, count in counts.items()
        for number in range(count)
    )


def kinds_of(devices: tuple[str, ...]) -> tuple[int, ...]:
    """The group of each worker: who computes on the same kind of device is in one."""
    kinds = list(dict.fromkeys(device.partition(":")[0] for device in devices))
    return tuple(kinds.index(device.partition(":")[0]) for device in devices)


def check_takes_device(function: Callable[..., Any]) -> None:
    """Refuses a function that cannot be told what to compute on."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of some functions in C
        return
    takes = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    if not takes and "device" not in parameters:
        raise UsageError(
            "devices: the function is told what to compute on, and takes no device; write "
            "`def function(rows, …, *, device):`"
        )


def _found(processors: int) -> dict[str, int]:
    """All GPUs that torch sees, and a worker on each processor that none of them needs."""
    import torch

    gpus = torch.cuda.device_count()
    counts = {"cuda": gpus, _PROCESSOR: max(processors - gpus, 0 if gpus else 1)}
    return {kind: count for kind, count in counts.items() if count}


def _is_kind(item: tuple[Any, Any]) -> bool:
    kind, count = item
    is_name = isinstance(kind, str) and kind.isidentifier()
    return is_name and isinstance(count, int) and not isinstance(count, bool) and count >= 1
