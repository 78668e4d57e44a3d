# SPDX-License-Identifier: Apache-2.0
"""A shard: some of the model's parameters, with the optimizer and its state for these.

Gradients are staged as they come, and applied in the order of entries, which is the same on all
shards. One thread at a time: who serves it holds a lock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gangline.paramserver.service.changes import RowChanges
from gangline.paramserver.service.coding import decoded
from gangline.paramserver.service.pieces import Pieces
from gangline.paramserver.service.pushes import (
    Push,
    check_fit,
    check_gradient,
    check_rows,
    compensated,
    push_of,
)
from gangline.paramserver.service.updates import Mode, Rate, Updates
from gangline.paramserver.shards import assign
from gangline.spec.errors import MismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from gangline.paramserver.service.pushes import Gradient
    from gangline.spec.serving import Entry, Part, Serving

MAX_STAGED = 256
"""Of one team, before its pushes are refused: nobody applies them."""
_BEGINNING = -1
"""Stands for a team that has not pulled yet: it computes with what all begin with."""


def shard_indices(parameters: Sequence[Tensor], serving: Serving) -> tuple[tuple[int, ...], ...]:
    """Which of the parameters each shard holds, by their bytes and the shards' weights."""
    sizes = [p.numel() * p.element_size() for p in parameters]
    return assign(sizes, [place.weight for place in serving.shards])


class Shard:
    """One shard's parameters, in main memory, and what is to become of them."""

    def __init__(
        self,
        number: int,
        indices: Sequence[int],
        parameters: Sequence[Tensor],
        optimizer: Optimizer | None,
        *,
        names: Sequence[str] = (),
        mode: Mode = "gradients",
        rate: Rate = "plain",
        compensation: float = 0.0,
    ) -> None:
        """`parameters` and `names` are those of the whole model, of which it copies its own.

        Where `mode` is "differences", workers have updated by themselves, and there is no optimizer.
        With `rate` "staleness" a step's learning rate is divided by 1 + its staleness. `compensation`
        is DC-ASGD's lambda: it costs one copy of the shard per team.
        """
        if not (math.isfinite(compensation) and compensation >= 0):
            raise UsageError(f"compensation is a number from 0 on, not {compensation}")
        if compensation and mode == "differences":
            raise UsageError("compensation is about gradients, not about differences")
        self.number, self.indices = number, tuple(indices)
        self.applied = 0
        """The first entry that was not applied."""
        self.history = 0
        """Which one its updates belong to: a reset begins another one, with the same numbers."""
        self.names = tuple(names[i] if names else f"parameter {i}" for i in self.indices)
        self._compensation = compensation
        originals = [parameters[i] for i in self.indices]
        self._updates = Updates(originals, optimizer, names=self.names, mode=mode, rate=rate)
        self._staged: dict[int, dict[int, Push]] = {}
        self._pieces = Pieces()
        self._newest: dict[int, int] = {}
        self._gone: set[int] = set()
        self._values: list[Tensor | None] = [None] * len(self.indices)
        self._changes = RowChanges([self.length(place) for place in range(len(self.indices))])
        self._pulled: dict[int, tuple[Tensor, ...]] = {}
        if compensation:
            self._pulled[_BEGINNING] = self.values()

    @property
    def num_bytes(self) -> int:
        """Of its parameters."""
        return sum(p.numel() * p.element_size() for p in self._updates.parameters)

    @property
    def keeps_pulls(self) -> bool:
        """Whether it matters to it what each team has pulled last."""
        return self._compensation > 0

    # --- pushes ----------------------------------------------------------------------------------

    def stage(
        self, team: int, clock: int, push: Push, early: Mapping[int, int] | None = None
    ) -> None:
        """Keeps a push until an entry says that it counts; what was staged or applied counts once.

        `early` says under which numbers some of its gradients were pushed before, by their indices.
        Raises a MismatchError or a GradientError where it does not fit, and then keeps nothing of it.
        """
        early = early or {}
        push = push._replace(
            gradients=tuple(self._plain(i, one) for i, one in enumerate(push.gradients))
        )
        self._check(team, clock, push, early)
        staged = self._staged.get(team, {})
        if clock <= self._newest.get(team, -1) or clock in staged:
            return
        found = self._pieces.find(team, clock, early)
        gradients = [
            found.get(index, gradient)
            for index, gradient in zip(self.indices, push.gradients, strict=True)
        ]
        self._pieces.forget(team)
        self._staged.setdefault(team, {})[clock] = push._replace(gradients=tuple(gradients))

    def stage_early(
        self, team: int, clock: int, number: int, gradients: Mapping[int, Gradient]
    ) -> None:
        """Keeps some gradients of a push to come, by their indices; alone they count nothing."""
        self._check_sender(team, clock)
        found = {index: self._plain(self._place_of(index), one) for index, one in gradients.items()}
        for index, gradient in found.items():
            place = self._place_of(index)
            check_gradient(gradient, self._updates.parameters[place], self.names[place])
        if clock > self._newest.get(team, -1):
            self._pieces.put(team, clock, number, found)

    def apply(self, entries: Sequence[Entry]) -> None:
        """Applies those that are new to it, in order; a MismatchError says what it lacks."""
        for entry in sorted(entries, key=lambda entry: entry.number):
            if entry.number < self.applied:
                continue
            if entry.number > self.applied:
                raise MismatchError(
                    f"shard {self.number} is given update {entry.number} and lacks update "
                    f"{self.applied}: who pulls brings all entries since its last pull"
                )
            self._apply(entry)
            self.applied += 1
            for part in entry.parts:
                self._drop(part.team, part.clock)

    def forget(self, team: int) -> None:
        """A team is gone: what it staged is void, and no more is taken from it."""
        self._staged.pop(team, None)
        self._pieces.forget(team)
        self._newest.pop(team, None)
        self._pulled.pop(team, None)
        self._gone.add(team)

    def note_pull(self, team: int) -> None:
        """A team reads the present values: its next gradient is computed with them."""
        if self._compensation:
            self._pulled[team] = self.values()

    # --- pulls -----------------------------------------------------------------------------------

    def values(self) -> tuple[Tensor, ...]:
        """Copies of its parameters, which nobody changes: all who pull one update share them."""
        return tuple(self.value(place) for place in range(len(self.indices)))

    def value(self, place: int) -> Tensor:
        """One of `values`."""
        value = self._values[place]
        if value is None:
            value = self._updates.parameters[place].detach().clone()
            self._values[place] = value
        return value

    def length(self, place: int) -> int:
        """How many rows one of its parameters has."""
        parameter = self._updates.parameters[place]
        return len(parameter) if parameter.dim() else 0

    def row_bytes(self, place: int) -> int:
        """Of one row of one of its parameters."""
        parameter = self._updates.parameters[place]
        return parameter.numel() * parameter.element_size() // max(1, self.length(place))

    def changed_since(self, place: int, applied: int) -> Tensor | None:
        """Which rows of one of its parameters so many updates did not have; None: all, perhaps."""
        return self._changes.since(place, applied)

    def changed_among(self, place: int, rows: Tensor, applied: Tensor) -> Tensor:
        """Those of these rows that so many updates did not have, a number for each row."""
        self.checked_rows(place, rows)
        if applied.dtype != rows.dtype or applied.shape != rows.shape:
            raise MismatchError(
                f"{len(rows)} rows of {self.names[place]} are asked for, with numbers of updates of "
                f"shape {tuple(applied.shape)}: each row has one"
            )
        return self._changes.among(place, rows, applied)

    def checked_rows(self, place: int, rows: Tensor) -> Tensor:
        """Rows that somebody names; a MismatchError where the parameter has none such."""
        check_rows(rows, self._updates.parameters[place], self.names[place])
        return rows

    def rows(self, index: int, rows: Tensor) -> Tensor:
        """Some rows of one parameter, by its index in the model."""
        place = self._place_of(index)
        return self._updates.parameters[place].detach()[self.checked_rows(place, rows)]

    def state(self) -> dict[int, dict[str, Any]]:
        """A copy of the optimizer's state of each parameter, by its index in the model."""
        state = zip(self.indices, self._updates.state(), strict=True)
        return {index: given for index, given in state if given is not None}

    # --- replicas, and beginning again -------------------------------------------------------------

    def export(self) -> dict[str, Any]:
        """All that a replica needs to be the same shard."""
        return {
            "applied": self.applied,
            "history": self.history,
            "values": list(self.values()),
            "state": self._updates.state(),
            "options": self._updates.options(),
            "staged": {
                team: {clock: list(push) for clock, push in clocks.items()}
                for team, clocks in self._staged.items()
            },
            "early": self._pieces.export(),
            "newest": dict(self._newest),
            "gone": sorted(self._gone),
            "pulled": {team: list(values) for team, values in self._pulled.items()},
        }

    def load(self, exported: Mapping[str, Any]) -> None:
        """Becomes what another one has exported."""
        self._set(exported["values"], exported["applied"], exported["history"])
        self._newest, self._gone = dict(exported["newest"]), set(exported["gone"])
        self._pulled = {team: tuple(values) for team, values in exported["pulled"].items()}
        self._staged = {
            team: {clock: push_of(push) for clock, push in clocks.items()}
            for team, clocks in exported["staged"].items()
        }
        self._pieces.load(exported["early"])
        self._updates.load(exported["state"], exported["options"])

    def reset(self, values: Sequence[Tensor], applied: int, history: int) -> None:
        """Goes back to values that were pulled after `applied` updates; what was staged is void.

        What comes is another history: it has the numbers of updates that are void now. The optimizer
        keeps its state, since nobody has pulled that.
        """
        for value, parameter, name in zip(
            values, self._updates.parameters, self.names, strict=True
        ):
            check_fit(value, parameter, name)
        self._set(values, applied, history)
        self._staged.clear()
        self._pieces.clear()
        self._newest.clear()
        self._pulled = {_BEGINNING: self.values()} if self._compensation else {}

    # --- inside ------------------------------------------------------------------------------------

    def _set(self, values: Sequence[Tensor], applied: int, history: int) -> None:
        """Has other values; which rows differ from those before is not known."""
        self._updates.set_values(values)
        self._values = [None] * len(self.indices)
        self.applied, self.history = applied, history
        self._changes.begin_anew(applied)

    def _plain(self, place: int, gradient: Any) -> Gradient:
        """What was pushed, decoded if it is a message of a codec and is for a place that is there."""
        if not isinstance(gradient, dict) or place >= len(self.indices):
            found: Gradient = gradient
            return found
        return decoded(gradient, self._updates.parameters[place], self.names[place])

    def _place_of(self, index: int) -> int:
        if index not in self.indices:
            raise MismatchError(
                f"shard {self.number} does not hold parameter {index}, but {self.indices}"
            )
        return self.indices.index(index)

    def _check_sender(self, team: int, clock: int) -> None:
        if team < 0 or clock < 0:
            raise MismatchError(
                f"a push is of a team and a clock from 0 on, not {team} and {clock}"
            )
        if team in self._gone:
            raise MismatchError(f"team {team} is not known any more: it was lost, or has left")

    def _check(self, team: int, clock: int, push: Push, early: Mapping[int, int]) -> None:
        self._check_sender(team, clock)
        if len(self._staged.get(team, ())) >= MAX_STAGED:
            raise MismatchError(
                f"team {team} has {MAX_STAGED} pushes that no update has used: nobody pulls from "
                f"shard {self.number}"
            )
        if len(push.gradients) != len(self.indices):
            raise MismatchError(
                f"the push of team {team} has gradients of {len(push.gradients)} parameters; shard "
                f"{self.number} holds {len(self.indices)}: all workers must train the same model"
            )
        for index in early:
            self._place_of(index)
        for gradient, p, name in zip(
            push.gradients, self._updates.parameters, self.names, strict=True
        ):
            check_gradient(gradient, p, name)
        self._updates.check_options(push.options)

    def _apply(self, entry: Entry) -> None:
        pushes = [self._staged_push(entry, part) for part in entry.parts]
        parts = [
            (part.weight, self._compensated(part.team, push))
            for part, push in zip(entry.parts, pushes, strict=True)
        ]
        changed: Sequence[Tensor | None] = [None] * len(self.indices)  # where the update fails
        try:
            changed = self._updates.apply(parts, entry.staleness)
        finally:
            self._changes.note(entry.number + 1, changed)
            for place, rows in enumerate(changed):
                if rows is None or len(rows):
                    self._values[place] = None

    def _staged_push(self, entry: Entry, part: Part) -> Push:
        push = self._staged.get(part.team, {}).get(part.clock)
        if push is None:
            raise MismatchError(
                f"update {entry.number} is of team {part.team} at clock {part.clock}, which has not "
                f"pushed that to shard {self.number}: entries come after the acknowledgement"
            )
        return push

    def _compensated(self, team: int, push: Push) -> Push:
        """DC-ASGD: as if the gradient were that of the present values, to the first order."""
        if not self._compensation:
            return push
        then = self._pulled.get(team, self._pulled[_BEGINNING])
        present = [p.detach() for p in self._updates.parameters]
        return push._replace(
            gradients=tuple(
                compensated(gradient, self._compensation, now, old)
                for gradient, now, old in zip(push.gradients, present, then, strict=True)
            )
        )

    def _drop(self, team: int, clock: int) -> None:
        """What a team has staged up to an applied clock is used, or void."""
        self._newest[team] = max(clock, self._newest.get(team, -1))
        staged = self._staged.get(team, {})
        for old in [c for c in staged if c <= clock]:
            del staged[old]
        self._pieces.drop(team, clock)
