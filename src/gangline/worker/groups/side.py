# SPDX-License-Identifier: Apache-2.0
"""What a worker exchanges beside its training: on a thread, in a group of a few that is made for it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gangline.collectives import SoloGroup
from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.collectives import Group, GroupKey
    from gangline.collectives.transports import Door
    from gangline.spec.exchange.address import WireAddress

T = TypeVar("T")

_log = logging.getLogger(__name__)
_BREAK_S = 0.002


class SideTask(Generic[T]):
    """One exchange, under way."""

    def __init__(
        self,
        run: Callable[[], T],
        on_failure: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`on_failure` is told why it failed, by the thread: others may have to hear of it."""
        self.result: T | None = None
        self.fault: Exception | None = None
        """What ended it, where that was not the loss of another member."""
        self._run = run
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._work, name="gangline-side", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.result = self._run()
        except ExchangeError as error:
            self._on_failure(str(error))
        except Exception as error:  # others wait: whatever it is, they must hear of it
            _log.exception("an exchange beside the training failed")
            self.fault = error
            self._on_failure(f"{type(error).__name__}: {error}")

    @property
    def is_under_way(self) -> bool:
        """Whether it has neither succeeded nor failed."""
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """Waits for its end, but not for longer than this."""
        self._thread.join(timeout_s)


class SideGroup:
    """The group that a task uses: made by its thread, and ended by that or by another one."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._group: Group | None = None
        self._connecting: GroupKey | None = None

    @property
    def group(self) -> Group | None:
        """The group, where there is one."""
        return self._group

    def enter_alone(self) -> Group:
        """Leaves the old group; there is nobody to exchange with."""
        self.leave()
        self._group = SoloGroup()
        return self._group

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
        """Leaves the old group for another one."""
        self.leave()
        self._connecting = key
        try:
            self._group = self._door.connect_beside(key, rank=rank, addresses=addresses)
        finally:
            self._connecting = None
        return self._group

    def break_off(self, task: SideTask[Any]) -> None:
        """Ends a task that will not come to anything, from another thread."""
        while task.is_under_way:  # it may be about to connect, or to begin with a group
            key, group = self._connecting, self._group
            if key is not None:
                self._door.cancel(key)
            if group is not None:
                group.abort()
            task.wait(_BREAK_S)
        self.leave()

    def leave(self) -> None:
        """Closes the group, if there is one."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()
            group.close()
