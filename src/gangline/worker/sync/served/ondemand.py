# SPDX-License-Identifier: Apache-2.0
"""Rows of large tables that come when a batch uses them: `asp(rows=ondemand)`.

Before an `nn.Embedding(sparse=True)` or `nn.EmbeddingBag` looks its rows up, those of them that may
lack updates are fetched from the servers. Pulls bring the rest of the model, and of the tables only the
rows that most batches use. A row that is read has all updates that a whole pull would have brought
before the step, and perhaps newer ones, as shards may have that answer a pull.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gangline.spec.errors import ExchangeError, UnsupportedError
from gangline.worker.sync.served.updates import ServedUpdates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from gangline.paramserver.service.client import ServiceClient
    from gangline.protocol.messages import Turn
    from gangline.spec.serving import Service
    from gangline.spec.view import View
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.session import Session
    from gangline.worker.sync.served.touched import Changed
    from gangline.worker.sync.strategy import Window


class OnDemandUpdates(ServedUpdates):
    """Has the tables whole at the end of an epoch; inside of it, the rows that batches use."""

    def __init__(
        self, session: Session, prepared: Prepared, service: Service, view: Callable[[], View]
    ) -> None:
        super().__init__(session, prepared, service, view)
        numbers = {id(p): index for index, p in enumerate(self._parameters)}
        modules = [
            (numbers[id(module.weight)], module)
            for model in prepared.models
            for module in model.modules()
            if isinstance(module, nn.Embedding | nn.EmbeddingBag)
            and module.sparse
            and id(module.weight) in numbers
        ]
        self._tables = sorted({index for index, _ in modules})
        self._handles = [
            module.register_forward_pre_hook(partial(self._before, index), with_kwargs=True)
            for index, module in modules
        ]
        self._is_inside = False
        """Whether an epoch is under way: at its end all rows are there."""
        self._failure: ExchangeError | None = None
        """Why rows could not be had: the step that needs them counts nothing."""
        self._used: dict[int, list[Tensor]] = {index: [] for index in self._tables}
        """Which rows of each table its layers were asked for since the last pull."""

    def _lazy(self) -> Sequence[int]:
        return self._tables

    def begin(self, epoch: int) -> None:
        """As without; from here on rows come when they are needed."""
        super().begin(epoch)
        self._is_inside, self._failure = True, None

    def settle(self, epoch: int, *, takes_state: bool) -> None:
        """Takes the parameters that have come of the epoch, with all rows."""
        self._is_inside = False
        super().settle(epoch, takes_state=takes_state)

    def _before(self, index: int, _: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A layer is about to look rows up."""
        given = args[0] if args else kwargs.get("input")
        if not self._is_inside or not isinstance(given, torch.Tensor):
            return
        rows = torch.unique(given.detach().reshape(-1).to("cpu", torch.int64))
        is_there = (rows >= 0) & (rows < len(self._parameters[index]))  # torch refuses the others
        if torch.is_grad_enabled():
            self._used[index].append(rows[is_there])
        try:
            self._fetch_rows(index, rows[is_there])
        except ExchangeError as error:
            self._failure = error

    def _fetch_rows(self, index: int, rows: Tensor) -> None:
        self._hosted.client.count_use(index, rows)
        if not len(self._hosted.client.lacks(index, rows)):
            return

        def fetch(client: ServiceClient) -> None:
            upto, entries = self._wanted_now()
            client.fetch(index, rows, upto=upto, entries=entries)

        self._served(fetch)

    def _update(
        self,
        step: Callable[[], None],
        *,
        rows: Mapping[int, Tensor],
        window: Window,
    ) -> float:
        """As without, if all rows were there that the gradient was computed from."""
        if self._session.group.size > 1:
            raise UnsupportedError(
                f"sync={str(self._service)!r}: members of a team must read the same rows, and fetch "
                "them at different times; leave out rows=ondemand, or the structure"
            )
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        for index in self._tables:
            self._check_read(index, rows)
        return super()._update(step, rows=rows, window=window)

    def _check_read(self, index: int, rows: Mapping[int, Tensor]) -> None:
        """Refuses a gradient of rows that the layer was not asked for: they may have been old."""
        parameter = self._parameters[index]
        if parameter.grad is None:
            return
        found, used = rows.get(id(parameter)), [torch.empty(0, dtype=torch.int64)]
        used += self._used[index]
        if found is None or not bool(torch.isin(found.cpu(), torch.cat(used)).all()):
            raise UnsupportedError(
                f"sync={str(self._service)!r}: rows of {self._names[index]} were read in another way "
                "than by calling its layer, and may lack updates: call the nn.Embedding or "
                "nn.EmbeddingBag itself, or leave out rows=ondemand"
            )

    def _read(self, turn: Turn) -> Changed:
        self._failure = None
        for used in self._used.values():
            used.clear()
        return super()._read(turn)

    def close(self) -> None:
        """Serves and asks no more; the layers are as they were."""
        super().close()
        for handle in self._handles:
            handle.remove()
