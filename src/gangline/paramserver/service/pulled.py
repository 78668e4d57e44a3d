# SPDX-License-Identifier: Apache-2.0
"""A client's parameters, as far as they were pulled: what is asked for, and what the answers change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gangline.paramserver.service.kept import Kept
from gangline.paramserver.service.lazy import LazyTables
from gangline.paramserver.service.pushes import Rows, check_fit, copy_into, put_rows
from gangline.paramserver.service.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from gangline.paramserver.service.messages import Values


class Pulled:
    """What was read of the servers, what of it is kept, and which tables have only some rows of it."""

    def __init__(self, parameters: Sequence[Tensor], *, keeps: bool, lazy: Sequence[int]) -> None:
        """With `keeps`, the newest consistent cut is; of those in `lazy`, pulls bring hot rows only."""
        self._parameters, self._keeps = parameters, keeps
        self.reading = Reading(parameters)
        self.kept = Kept()
        self.lazy = LazyTables({index: len(parameters[index]) for index in lazy})
        self.at: tuple[int, ...] = ()
        """For each shard, the first update that was not in what was pulled last."""
        self.written: dict[int, Tensor | None] = {}
        """The rows of each parameter that the last pull has written; None: all of them."""

    def begin(self, num_shards: int) -> None:
        """Nothing was applied yet: the parameters as they are count as pulled."""
        self.kept.begin(self._parameters)
        self.reading.begin(num_shards)
        self.lazy.begin()

    def spoil(self) -> None:
        """What the parameters hold is not known any more."""
        self.reading.spoil()
        self.lazy.forget()

    def ask(self) -> Callable[[int, tuple[int, ...]], dict[str, Any]]:
        """What a pull says of what is there already, to each shard with its parameters."""
        hot = self.lazy.find_hot(self.reading)

        def say(shard: int, indices: tuple[int, ...]) -> dict[str, Any]:
            standing = self.reading.standing(shard)
            return {
                "standing": standing,
                "own": self.reading.own(indices, self.kept.missed),
                "lazy": {} if standing is None else {i: hot[i] for i in indices if i in hot},
            }

        return say

    def take(
        self,
        indices: Sequence[tuple[int, ...]],
        answers: Mapping[int, Values],
        *,
        writes: bool = True,
    ) -> None:
        """All shards have answered a pull, each with these parameters in this order.

        Where this does not write them, the parameters stay unknown.
        """
        values = {
            index: value
            for shard, answer in answers.items()
            for index, value in zip(indices[shard], answer.values, strict=True)
            if value is not None
        }
        changed = {
            index: (rows, value)
            for answer in answers.values()
            for index, (rows, value) in answer.changed.items()
        }
        self.at = tuple(answers[shard].applied for shard in sorted(answers))
        is_whole = True
        if writes:
            self._write(values, changed)
            is_whole = self._note(indices, answers)
        else:
            self.written = {}
        if not is_whole:
            self.kept.miss()
        elif self._keeps:
            self.kept.note(values, changed, set(self.at))

    def _note(self, indices: Sequence[tuple[int, ...]], answers: Mapping[int, Values]) -> bool:
        """What was answered is written; whether it was all that is new."""
        self.reading.note_pull({s: (one.history, one.applied) for s, one in answers.items()})
        is_lazy = [self.lazy.note_pull(indices[shard], one) for shard, one in answers.items()]
        return not any(is_lazy)

    def _write(
        self, values: Mapping[int, Tensor], rows: Mapping[int, tuple[Tensor, Tensor]]
    ) -> None:
        for index, value in values.items():
            check_fit(value, self._parameters[index], f"parameter {index}")
        for index, found in rows.items():
            check_fit(Rows(*found), self._parameters[index], f"parameter {index}")
        with torch.no_grad():
            for index, value in values.items():
                copy_into(self._parameters[index], value)
            for index, (chosen, value) in rows.items():
                put_rows(self._parameters[index], chosen, value)
        # Their memory is used again by the next pull.
        numbers = {index: chosen.clone() for index, (chosen, _) in rows.items()}
        self.written = {**dict.fromkeys(values), **numbers}

    def write_rows(self, index: int, found: Rows) -> None:
        """Writes rows that came beside a pull.

        As through `.data`: what a graph needs of a table is up to date, and stays as it is.
        """
        check_fit(found, self._parameters[index], f"parameter {index}")
        put_rows(self._parameters[index].data, *found)
