# SPDX-License-Identifier: Apache-2.0
"""What workers tell each other when they meet, and what follows from it: the same for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.spec.errors import LaunchError, MismatchError
from gangline.spec.exchange.address import WireAddress
from gangline.spec.pipelines import Layout, Machine

if TYPE_CHECKING:
    from collections.abc import Sequence


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker stands."""

    worker: int
    address: WireAddress | None
    asked: int
    """A checksum of what its script has asked for, and of the model."""
    position: int
    """How many steps it has made."""
    is_prepared: bool
    """Whether it has all gradients of the next one, and could make it."""
    loss: float
    """Of the last step that it has made."""
    held: list[int]
    """The layers that it has, at its position."""
    machine: Machine
    link_s: float = 0.0
    """How long a small message takes."""
    bytes_per_s: float = 1e9
    view: int = 0
    """The newest layout that it knows of."""
    nonce: str = ""
    """Names the groups that are made, if this worker is the first."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What the first worker has made of it, for all."""

    layout: Layout | None = None
    recompute: list[bool] = []
    """For each pipeline."""
    error: str = ""


class Move(NamedTuple):
    """One worker sends layers to another."""

    source: int
    target: int
    layers: tuple[int, ...]


def check_alike(standings: Sequence[Standing]) -> None:
    """All must train the same model in the same way."""
    kinds = {one.asked for one in standings}
    if len(kinds) > 1:
        groups = [[one.worker for one in standings if one.asked == kind] for kind in sorted(kinds)]
        raise MismatchError(
            "the workers give pipeline() different models or options: workers "
            + ", and unlike them ".join(", ".join(map(str, some)) for some in groups)
            + ". Seed torch before the model is made (torch.manual_seed), and let all workers call "
            "pipeline() alike"
        )


def furthest(standings: Sequence[Standing]) -> Standing:
    """Who has made the most steps: its last one counts, and the others make it, too.

    Nobody makes a step before everybody could: so whoever is behind has the gradients for it.
    """
    return max(standings, key=lambda one: one.position)


def holdings_of(layout: Layout) -> dict[str, set[int]]:
    """Which layers each machine needs: its stage's, and those that it keeps copies of."""
    needed: dict[str, set[int]] = {}
    for stage in (stage for one in layout.pipelines for stage in one.stages):
        needed.setdefault(stage.machine, set()).update(range(stage.start, stage.stop))
    for copy in layout.copies:
        needed.setdefault(copy.machine, set()).update(range(copy.start, copy.stop))
    return needed


def moves_for(layout: Layout, standings: Sequence[Standing], names: Sequence[str]) -> list[Move]:
    """Who sends which layers to whom. Raises LaunchError, with their names, where nobody has some."""
    needed = holdings_of(layout)
    owners: dict[int, int] = {}
    for place, one in enumerate(standings):
        for layer in one.held:
            owners.setdefault(layer, place)
    gone = [names[index] for index in range(len(names)) if index not in owners]
    if gone:
        raise LaunchError(
            f"the layers {', '.join(map(repr, gone))} are lost: only workers that are gone had them. "
            "Leave more memory for copies, or begin again from what your script has saved"
        )
    moves: dict[tuple[int, int], list[int]] = {}
    for place, one in enumerate(standings):
        for layer in sorted(needed.get(one.machine.name, set()) - set(one.held)):
            moves.setdefault((owners[layer], place), []).append(layer)
    return [Move(*pair, tuple(layers)) for pair, layers in sorted(moves.items())]


class Tie(NamedTuple):
    """Layers that the same workers hold: their gradients are summed by these, in rank order."""

    layers: tuple[int, ...]
    computing: tuple[str, ...]
    """One machine of each pipeline."""
    keeping: tuple[str, ...]
    """Those that keep a copy: they add nothing, and make the same step."""

    @property
    def members(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.computing, *self.keeping)


def ties_of(layout: Layout, num_layers: int) -> list[Tie]:
    """The groups that sum gradients, in an order that all keep; who is alone needs none."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for layer in range(num_layers):
        computing = tuple(
            stage.machine
            for one in layout.pipelines
            for stage in one.stages
            if stage.start <= layer < stage.stop
        )
        keeping = tuple(one.machine for one in layout.copies if one.start <= layer < one.stop)
        if len(computing) + len(keeping) > 1:
            found.setdefault((computing, keeping), []).append(layer)
    return [Tie(tuple(layers), *members) for members, layers in found.items()]
