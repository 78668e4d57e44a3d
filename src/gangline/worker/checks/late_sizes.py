# SPDX-License-Identifier: Apache-2.0
"""Sizes of gradients that nobody has waited for: judged when they are there.

A worker that is alone runs ahead of its GPU. That a gradient was wrong is said a step or two later; at
the latest before it exchanges with others again, before a checkpoint, and at the end of an epoch.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gangline.worker.telling.reports import tell_wrong

if TYPE_CHECKING:
    from gangline.worker.checks.scrutiny import Scrutiny
    from gangline.worker.gradients.sizes import PassSize
    from gangline.worker.session import Session


class LateSizes:
    """Those of this worker's last passes, in their order."""

    def __init__(self, session: Session, scrutiny: Scrutiny) -> None:
        self._session = session
        self._scrutiny = scrutiny
        self._unread: deque[tuple[int, PassSize]] = deque()

    def note(self, size: PassSize, *, step: int) -> None:
        """A pass of this step was made; judges those before it that are there."""
        self._unread.append((step, size))
        while self._unread and self._unread[0][1].is_there:
            self._judge(*self._unread.popleft())

    def settle(self) -> None:
        """Waits for all of them, and judges them."""
        while self._unread:
            self._judge(*self._unread.popleft())

    def _judge(self, step: int, size: PassSize) -> None:
        for wrong in self._scrutiny.judge([size.read()], usual=self._scrutiny.usual):
            tell_wrong(self._session, wrong, step=step)
