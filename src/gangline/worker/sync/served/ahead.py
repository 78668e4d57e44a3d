# SPDX-License-Identifier: Apache-2.0
"""Updates that travel while the next step is computed: `asp(ahead=1)`.

The gradient of a step is pushed, and the parameters are pulled, on a thread beside the training. They
are taken when the next gradient is there. So a step is computed with parameters that lack the last one.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gangline.paramserver.service.optimizers import options_of
from gangline.spec.errors import UnsupportedError
from gangline.worker.sync.served.scaling import unscale
from gangline.worker.sync.served.updates import ServedUpdates, copies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from gangline.spec.serving import Service
    from gangline.spec.view import View
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.session import Session
    from gangline.worker.sync.strategy import Window


class AheadUpdates(ServedUpdates):
    """Computes the next step while the last one is pushed; one at a time is under way."""

    def __init__(
        self, session: Session, prepared: Prepared, service: Service, view: Callable[[], View]
    ) -> None:
        super().__init__(session, prepared, service, view)
        self._arrived: list[Tensor] = []
        """Where pulls are written to; the loop computes with the parameters meanwhile."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="gangline-ahead")
        self._under_way: Future[Any] | None = None

    @property
    def _pushes_early(self) -> bool:
        """Not while the last update is under way: the next has no clock yet."""
        return False

    def _pulled_into(self) -> list[Tensor]:
        self._arrived = copies_of(self._parameters)
        return self._arrived

    def _update(
        self,
        step: Callable[[], None],
        *,
        rows: Mapping[int, Tensor],
        window: Window,
    ) -> float:
        """Takes what has become of the last update, and sends this one on its way."""
        began_s = time.perf_counter()
        self._finish()
        # The loop has waited for the turn only as far as computing did not hide it.
        turn_s = min(self._turn_s, time.perf_counter() - began_s)
        self._turn_s = 0.0
        if self._session.group.size > 1:
            raise UnsupportedError(
                f"sync={str(self._service)!r}: teams of several workers take their parameters "
                "together, and cannot compute ahead; leave out ahead=1, or the structure"
            )
        if not unscale(self._optimizer):
            return turn_s
        gradients = [None if g is None else g.detach().clone() for g in self._gradients(rows)]
        options = options_of(self._optimizer)  # a scheduler changes them before they are sent
        self._under_way = self._pool.submit(
            self._push,
            gradients,
            self._span(window),
            options=options,
        )
        return turn_s

    def _finish(self) -> None:
        """Waits for the update that is under way, and takes what was pulled."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()
            self._take()

    def _take(self) -> None:
        """What was pulled becomes the parameters' value."""
        for parameter, value in zip(self._parameters, self._arrived, strict=True):
            parameter.data.copy_(value)

    def begin(self, epoch: int) -> None:
        """As without; nothing is under way then."""
        self._finish()
        super().begin(epoch)

    def flush(self, *, epoch: int, stop: int) -> None:
        """The epoch is over for this team: its last update is waited for."""
        self._finish()
        super().flush(epoch=epoch, stop=stop)

    def settle(self, epoch: int, *, takes_state: bool) -> None:
        """Takes the parameters that have come of the epoch."""
        self._finish()
        super().settle(epoch, takes_state=takes_state)
        self._take()

    def export(self) -> dict[str, Any]:
        """What a member of the same team needs to go on as this one does."""
        self._finish()
        return super().export()

    def close(self) -> None:
        """Serves and asks no more."""
        super().close()
        self._pool.shutdown(wait=False, cancel_futures=True)
