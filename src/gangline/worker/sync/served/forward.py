# SPDX-License-Identifier: Apache-2.0
"""Parameters that are pulled during the next forward pass: `bsp(pull=forward)`.

A step ends when its gradient is pushed. The turn is waited for, and the parameters are pulled, on a
thread beside the loop, in the order in which the last forward pass used them; whoever uses a parameter
waits for that one (`coming.py`). So what is computed is what it is with `pull=step`.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gangline.spec.errors import ExchangeError, UnsupportedError
from gangline.worker.sync.served.coming import Arrivals
from gangline.worker.sync.served.scaling import unscale
from gangline.worker.sync.served.updates import ServedUpdates, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from gangline.paramserver.service.client import ServiceClient
    from gangline.spec.serving import Entry, Service
    from gangline.spec.view import View
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.session import Session
    from gangline.worker.sync.strategy import Window


class _Told(NamedTuple):
    """An update that is pushed, and whose turn is waited for."""

    clock: int
    span: Span
    serving: int


class ForwardPulls(ServedUpdates):
    """Goes on with the loop while the parameters come; one update at a time is under way."""

    def __init__(
        self, session: Session, prepared: Prepared, service: Service, view: Callable[[], View]
    ) -> None:
        super().__init__(session, prepared, service, view)
        _check_eager(prepared)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="gangline-pull")
        self._under_way: Future[None] | None = None
        self._arrivals: Arrivals | None = None
        self._told: _Told | None = None
        """What was told, and not answered."""
        self._order = list(range(len(self._parameters)))
        """In which parameters were used last."""

    def _update(
        self,
        step: Callable[[], None],
        *,
        rows: Mapping[int, Tensor],
        window: Window,
    ) -> float:
        """Pushes, and lets the rest go on beside the loop."""
        self._finish()
        if self._session.group.size > 1:
            raise UnsupportedError(
                f"sync={str(self._service)!r}: teams of several workers take their parameters "
                "together, when a step ends; leave out pull=forward, or the structure"
            )
        if not unscale(self._optimizer):
            return 0.0
        span = self._span(window)
        clock, serving = self._deliver(self._gradients(rows), span, passes=window.passes)
        self._told = _Told(clock, span, serving)
        self._turn_s = 0.0
        self._begin_to_pull()
        return 0.0

    def _begin_to_pull(self) -> None:
        self._arrivals = Arrivals(self._parameters)
        self._under_way = self._pool.submit(self._complete, self._arrivals)

    def _complete(self, arrivals: Arrivals) -> None:
        """Waits for the turn, and pulls; on the thread beside the loop."""
        told = self._told
        assert told is not None
        try:
            turn = self._say(told.clock, told.span, serving=told.serving)
            self._go_on(turn, pulls=True)
            self._pushed_stop, self._told = told.span.stop, None
        finally:
            arrivals.end()

    def _pull(self, client: ServiceClient, upto: int, entries: Sequence[Entry]) -> None:
        arrivals = self._arrivals
        if arrivals is None:
            super()._pull(client, upto, entries)
            return
        arrivals.begin()
        client.pull(upto, entries, order=self._order, on_value=arrivals.arrive)

    def take_waits(self) -> tuple[float, float]:
        """How long the loop has waited for parameters, and how much of that for a turn."""
        arrivals = self._arrivals
        if arrivals is None:
            return 0.0, 0.0
        waited_s, arrivals.waited_s = arrivals.waited_s, 0.0
        turn_s, self._turn_s = min(self._turn_s, waited_s), 0.0
        return waited_s, turn_s

    def _finish(self) -> None:
        """Waits until all parameters are there; raises why they are not."""
        under_way, self._under_way = self._under_way, None
        arrivals = self._arrivals
        if under_way is None or arrivals is None:
            return
        try:
            under_way.result()
        finally:
            arrivals.close()
            self._arrivals, self._order = None, arrivals.used

    def resume(self) -> None:
        """The team goes on after a loss: asks again for the turn that it was not given."""
        super().resume()
        if self._told is not None and self._under_way is None:
            self._begin_to_pull()

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

    def export(self) -> dict[str, Any]:
        """What a member of the same team needs to go on as this one does."""
        self._finish()
        return super().export()

    def load(self, state: dict[str, Any]) -> None:
        """Becomes like the member that exported this; what was under way is not this team's."""
        self._told = None
        self._drop()
        super().load(state)

    def _drop(self) -> None:
        """What is under way comes to nothing."""
        with contextlib.suppress(ExchangeError):  # that is why another one's state is taken
            self._finish()

    def close(self) -> None:
        """Serves and asks no more."""
        super().close()
        arrivals = self._arrivals
        if arrivals is not None:
            arrivals.end()
            arrivals.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _check_eager(prepared: Prepared) -> None:
    """Refuses models whose parameters are read by what torch does not tell us of."""
    for model in prepared.models:
        for name, module in model.named_modules():
            is_compiled = getattr(module, "_compiled_call_impl", None) is not None
            is_compiled = is_compiled or type(module).__name__ == "OptimizedModule"
            if is_compiled or isinstance(module, torch.jit.ScriptModule):
                raise UnsupportedError(
                    f"pull=forward: {name or 'the model'} is compiled or scripted, and would not wait "
                    "for its parameters. Leave out pull=forward, or the compiler"
                )
