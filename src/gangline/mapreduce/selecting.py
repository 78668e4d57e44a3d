# SPDX-License-Identifier: Apache-2.0
"""Which scheme a loop has: the one that was asked for, or one picked by how earlier loops went."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from gangline.scheduling import Layout, WorkQueues
from gangline.scheduling.selection import Selector, TunedQueues

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from gangline.mapreduce.arguments import Settings

    Queues = WorkQueues | TunedQueues

_MAX_KEPT = 64
"""Of how many functions it is remembered how their loops went."""
_kept: OrderedDict[Hashable, Selector] = OrderedDict()
_lock = threading.Lock()


@contextlib.contextmanager
def queues_of(
    settings: Settings, function: Callable[..., Any], *, total: int
) -> Iterator[tuple[Queues, list[str]]]:
    """The queues of a loop, and what was decided about it, which is known when it is over."""
    decided: list[str] = []
    if settings.choice is not None:
        yield (
            WorkQueues(
                settings.choice,
                total=total,
                workers=settings.workers,
                groups=settings.groups,
                seed=settings.seed,
            ),
            decided,
        )
        return
    key = _key(settings, function)
    with _lock:
        selector = _kept.pop(key, None)  # a loop of the same function within this one begins anew
    if selector is None:
        selector = Selector(
            workers=settings.workers,
            groups=settings.groups,
            layouts=(Layout.PERGROUP,) if settings.devices[0] else tuple(Layout),
            method=settings.method,
            seed=settings.seed,
        )
    queues = selector.begin(total)
    yield queues, decided
    selector.end(queues)
    decided += [f"{advice.choice}: {advice.reason}" for advice in selector.decided()]
    with _lock:
        _kept[key] = selector
        while len(_kept) > _MAX_KEPT:
            _kept.popitem(last=False)


def forget() -> None:
    """What earlier loops have shown counts no more."""
    with _lock:
        _kept.clear()


def _key(settings: Settings, function: Callable[..., Any]) -> Hashable:
    """Loops with the same key are taken to be alike."""
    code = getattr(function, "__code__", None) or type(function)
    return (code, settings.method, settings.where, settings.devices, settings.groups)
