# SPDX-License-Identifier: Apache-2.0
"""The leader's parameters become its team's: the rows that have changed since the last time.

What members have in common is what was shared in the same group of theirs. A group that breaks may
leave some of them without the last share, so the first one in each group is of everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gangline.paramserver.service.pushes import put_rows
from gangline.worker.sync.served.touched import Changed, joined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from gangline.collectives import Group
    from gangline.worker.session import Session

_WHOLE = -1
_UNCHANGED = -2


class Sharing:
    """Hands parameters from the first member of a group to all others."""

    def __init__(self, session: Session, parameters: Sequence[Tensor]) -> None:
        self._session = session
        self._parameters = parameters
        self._unshared: Changed = {}
        """What has changed here since the last share."""
        self._group: Group | None = None
        """In which everything was shared."""

    @property
    def is_needed(self) -> bool:
        """Whether there is somebody to share with."""
        return self._session.group.size > 1

    def note(self, changed: Mapping[int, Tensor | None]) -> None:
        """These rows were written here: by a pull, or by a step that each member makes."""
        if self.is_needed:
            self._unshared = joined(self._unshared, changed)

    def share(self, numbers: Sequence[int]) -> tuple[list[int], Changed]:
        """Returns the first member's numbers, and which rows of the parameters have come with them."""
        group, count = self._session.group, len(self._parameters)
        changed = self._unshared if group is self._group else dict.fromkeys(range(count))
        counts = [_count_of(changed, index) for index in range(count)]
        said = torch.tensor([*numbers, *counts], dtype=torch.int64)
        self._session.communicator.call(lambda group: group.broadcast(said, 0))
        told: list[int] = said.tolist()
        self._group, self._unshared = None, {}
        shared = self._move(changed, told[len(numbers) :])
        self._group = group
        return told[: len(numbers)], shared

    def _move(self, changed: Mapping[int, Tensor | None], counts: Sequence[int]) -> Changed:
        """Moves as many rows of each parameter as the first member says."""
        own = self._session.group.rank == 0
        given = [
            rows.cpu()
            if own and (rows := changed.get(index)) is not None
            else torch.empty(max(0, count), dtype=torch.int64)
            for index, count in enumerate(counts)
        ]
        numbers = torch.cat(given)
        parts = [
            p for p, count in zip(self._parameters, counts, strict=True) if count != _UNCHANGED
        ]

        def give(group: Group) -> None:
            if len(numbers):
                group.broadcast(numbers, 0)

        self._session.communicator.call(give)
        parted = torch.split(numbers, [max(0, count) for count in counts])
        shared: Changed = {
            index: None if count == _WHOLE else parted[index]
            for index, count in enumerate(counts)
            if count != _UNCHANGED
        }
        for kind in sorted({p.dtype for p in parts}, key=str):
            chosen = {i: r for i, r in shared.items() if self._parameters[i].dtype == kind}
            self._move_kind(chosen)
        return shared

    def _move_kind(self, chosen: Mapping[int, Tensor | None]) -> None:
        """The values of one type, as one vector."""
        values = [_values_of(self._parameters[index], rows) for index, rows in chosen.items()]
        flat = torch.cat([value.reshape(-1) for value in values])
        if not len(flat):
            return
        self._session.communicator.call(lambda group: group.broadcast(flat, 0))
        parts = torch.split(flat, [value.numel() for value in values])
        for (index, rows), value, part in zip(chosen.items(), values, parts, strict=True):
            parameter = self._parameters[index].data
            if rows is None:
                parameter.copy_(part.view_as(value))
            else:
                put_rows(parameter, rows, part.view_as(value))


def _count_of(changed: Mapping[int, Tensor | None], index: int) -> int:
    if index not in changed:
        return _UNCHANGED
    rows = changed[index]
    return _WHOLE if rows is None else len(rows)


def _values_of(parameter: Tensor, rows: Tensor | None) -> Tensor:
    value = parameter.detach()
    return value if rows is None else value[rows.to(value.device)]
