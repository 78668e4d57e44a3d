# SPDX-License-Identifier: Apache-2.0
"""Tables of which a client has only some rows up to date: `asp(rows=ondemand)`.

Rows that most batches use, the hot ones, come with every pull if they have changed. All others are
fetched when a batch uses them, if they have changed since they were fetched last.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from gangline.paramserver.service.messages import Values
    from gangline.paramserver.service.reading import Reading

WINDOW = 16
"""So many batches are looked at to find the rows that most of them use."""
MOST_HOT = 0.25
"""No more than this part of a table is hot, however many rows most batches use."""
UNKNOWN = -1


class LazyTable:
    """After how many updates each row of a table was read, and which rows are hot."""

    def __init__(self, length: int) -> None:
        self._read = torch.full((length,), UNKNOWN, dtype=torch.int64)
        self.history = UNKNOWN
        """The one that what was read belongs to."""
        self._due = 0
        """What is read must have so many updates: as many as the last pull had."""
        self._batches: deque[Tensor] = deque()
        self._counts = torch.zeros(length, dtype=torch.int16)
        """How many of the last batches have used each row."""

    # --- what is up to date ------------------------------------------------------------------------

    def read_all(self, history: int, applied: int) -> None:
        """The whole table was pulled."""
        self.history, self._due = history, applied
        self._read.fill_(applied)

    def read(self, rows: Tensor, history: int, applied: int) -> None:
        """These rows are as a shard has them after so many updates of a history."""
        if history != self.history:
            self.forget()
            self.history = history
        self._read[rows] = applied

    def forget(self) -> None:
        """What the table holds is not known any more."""
        self._read.fill_(UNKNOWN)

    def require(self, applied: int) -> None:
        """A pull had so many updates: what is read from now on must have them, too."""
        self._due = applied

    def stale(self, rows: Tensor) -> Tensor:
        """Those of these rows that may lack updates."""
        stale: Tensor = rows[self._read[rows] < self._due]
        return stale

    def standing(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """These rows, and after how many updates each was read."""
        return rows, self._read[rows]

    # --- what is hot -------------------------------------------------------------------------------

    def count(self, rows: Tensor) -> None:
        """A batch has used these rows."""
        self._batches.append(rows)
        self._counts[rows] += 1
        if len(self._batches) > WINDOW:
            self._counts[self._batches.popleft()] -= 1

    def hot(self) -> Tensor:
        """The rows that more than half of the last batches have used; the most used, if too many."""
        if not self._batches:
            return torch.empty(0, dtype=torch.int64)
        used = torch.unique(torch.cat(list(self._batches)))
        counts = self._counts[used]
        found: Tensor = used[counts > len(self._batches) // 2]
        most = int(MOST_HOT * len(self._counts))
        if len(found) <= most:
            return found
        order = torch.argsort(self._counts[found], descending=True, stable=True)
        hottest: Tensor = torch.sort(found[order[:most]]).values
        return hottest


class LazyTables:
    """The lazy ones among a client's parameters, by their indices."""

    def __init__(self, lengths: Mapping[int, int]) -> None:
        self._tables = {index: LazyTable(length) for index, length in lengths.items()}
        self._hot: dict[int, Tensor] = {}
        """Those that the present pull asks for."""

    def __getitem__(self, index: int) -> LazyTable:
        return self._tables[index]

    def find_hot(self, reading: Reading) -> dict[int, tuple[Tensor, Tensor]]:
        """The rows of each that a pull asks for, and after how many updates each was read."""
        for index, table in self._tables.items():
            if not reading.is_as_read(index):
                table.forget()
        self._hot = {index: table.hot() for index, table in self._tables.items()}
        return {index: self._tables[index].standing(rows) for index, rows in self._hot.items()}

    def begin(self) -> None:
        """All are those that all shards begin with."""
        for table in self._tables.values():
            table.read_all(0, 0)

    def forget(self) -> None:
        """What they hold is not known any more."""
        for table in self._tables.values():
            table.forget()

    def note_pull(self, indices: Sequence[int], answer: Values) -> bool:
        """A shard has answered a pull; whether some rows of its tables were left out."""
        is_lazy = False
        for index in indices:
            if index in self._tables:
                table = self._tables[index]
                if answer.values[indices.index(index)] is not None:
                    table.read_all(answer.history, answer.applied)
                else:
                    table.read(self._hot[index], answer.history, answer.applied)
                    table.require(answer.applied)
                    is_lazy = True
        return is_lazy
