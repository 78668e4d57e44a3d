# SPDX-License-Identifier: Apache-2.0
"""The order of an epoch: one sequence of sample indices that all workers agree on.

It is what a plain script would draw in rank 0's place, from the same random numbers, at the same
moment. Where groups train at their own pace, nobody can draw for all of them: there a shuffled order
follows from a seed that all hold.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, overload

import torch
from torch.utils.data import RandomSampler, SequentialSampler

from gangline.spec.errors import UnsupportedError, UsageError
from gangline.spec.position import ORDER
from gangline.worker.prepare.handshake import copy_value
from gangline.worker.samples.generators import set_states, states_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gangline.collectives import Group


class Agree(Protocol):
    """Runs an exchange that all workers make at the same place, and remembers it by its key."""

    def __call__(self, exchange: Callable[[Group], Any], key: tuple[str, int], /) -> Any: ...


class Company(Enum):
    """With whom a worker goes through an epoch."""

    ALONE = auto()
    """A job of one, which nobody can join."""
    TOGETHER = auto()
    """All workers make every step together."""
    APART = auto()
    """Groups train at their own pace."""


class Indices(Protocol):
    """An epoch's order, as far as it is asked for."""

    @overload
    def __getitem__(self, place: int, /) -> int: ...
    @overload
    def __getitem__(self, place: slice, /) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice, /) -> int | Sequence[int]: ...


class Order(Protocol):
    """Says in which order an epoch uses the samples."""

    @property
    def name(self) -> str: ...

    @property
    def length(self) -> int: ...

    def indices(self, epoch: int, agree: Agree, company: Company) -> Indices: ...

    def end(self) -> None:
        """All samples of the epoch were handed out."""
        ...


class SequentialOrder:
    """As they are stored."""

    name = "sequential"

    def __init__(self, length: int) -> None:
        self.length = length

    def indices(self, epoch: int, agree: Agree, company: Company) -> Indices:
        return range(self.length)

    def end(self) -> None:
        """Nothing is drawn."""


class ShuffledOrder:
    """What a RandomSampler draws: everybody draws it, from the state that rank 0's generator was in.

    So a generator of the user's own is in the same state on all workers, and any can go on as rank 0.
    """

    name = "shuffled"

    def __init__(self, sampler: RandomSampler, seed: int) -> None:
        self.length = len(sampler)
        self._generator: torch.Generator | None = sampler.generator
        self._seed = seed
        self._rest: Iterator[int] = iter(())
        self._own: tuple[int, torch.Tensor] | None = None

    def indices(self, epoch: int, agree: Agree, company: Company) -> Indices:
        def state_of_all(group: Group) -> torch.Tensor:
            if company is Company.APART:
                return torch.Generator().manual_seed(self._seed + epoch).get_state()
            state = self._own_state(epoch) if group.rank == 0 else torch.Generator().get_state()
            group.broadcast(state, 0)
            return state

        state: torch.Tensor = agree(state_of_all, (ORDER, epoch))
        self._own = None
        is_own = self._generator is not None and company is not Company.APART
        generator = self._generator if is_own else torch.Generator()
        assert generator is not None
        generator.set_state(state)
        self._rest = iter(RandomSampler(range(self.length), generator=generator))
        return list(islice(self._rest, self.length))

    def _own_state(self, epoch: int) -> torch.Tensor:
        """What a RandomSampler would draw from. A second try to agree on it draws nothing anew."""
        if self._own is None or self._own[0] != epoch:
            generator = self._generator
            if generator is None:  # a RandomSampler without a generator draws the seed of one
                seed = int(torch.empty((), dtype=torch.int64).random_().item())
                generator = torch.Generator().manual_seed(seed)
            self._own = epoch, generator.get_state()
        return self._own[1].clone()

    def end(self) -> None:
        """A RandomSampler that comes to its end draws once more."""
        for _ in self._rest:
            pass


class DrawnOrder:
    """Whatever a user's sampler draws on rank 0, sent to the others at the start of each epoch.

    With it goes the state in which that leaves the sampler's own random numbers: if rank 0 is lost, the
    next one draws on from there.
    """

    def __init__(self, sampler: Iterable[int]) -> None:
        self._sampler = sampler
        self._drawn: _DrawnIndices | None = None
        self._own: tuple[int, dict[str, Any]] | None = None
        self._states: dict[str, torch.Tensor] = {}
        """How the sampler's numbers were left by the last order."""
        self.name = f"drawn by {type(sampler).__name__}"
        self.length = self._find_length()

    def _find_length(self) -> int:
        try:
            return len(self._sampler)  # type: ignore[arg-type]
        except TypeError as error:
            raise UnsupportedError(
                f"the sampler {type(self._sampler).__name__} has no __len__: gangline must know how "
                "many samples an epoch has"
            ) from error

    def indices(self, epoch: int, agree: Agree, company: Company) -> Indices:
        if company is Company.ALONE:
            self._drawn = _DrawnIndices(self._sampler, self.length)
            return self._drawn
        order: list[int] = self._agree_on_drawn(epoch, agree).tolist()
        return order

    def _agree_on_drawn(self, epoch: int, agree: Agree) -> torch.Tensor:
        """What rank 0 has drawn. A second try to agree on it draws nothing anew."""

        def draw(group: Group) -> dict[str, Any]:
            if group.rank == 0 and (self._own is None or self._own[0] != epoch):
                drawn = self._draw()
                self._own = epoch, {"drawn": drawn, "numbers": states_of(self._sampler)}
            own = None if group.rank or self._own is None else self._own[1]
            agreed: dict[str, Any] = copy_value(group, own, root=0)
            return agreed

        agreed = agree(draw, (ORDER, epoch))
        self._own = None
        if isinstance(agreed, torch.Tensor):  # of an older checkpoint
            return agreed
        states: dict[str, torch.Tensor] = agreed["numbers"]
        if not _is_same(states, self._states):  # else the order is asked for again
            set_states(self._sampler, states)
            self._states = states
        drawn: torch.Tensor = agreed["drawn"]
        return drawn

    def _draw(self) -> torch.Tensor:
        whole = _DrawnIndices(self._sampler, self.length)
        whole.end()
        return torch.tensor(whole[:], dtype=torch.int64)

    def end(self) -> None:
        """A sampler may draw something when it comes to its end."""
        if self._drawn is not None:
            self._drawn.end()


def _is_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class _DrawnIndices:
    """Draws from a sampler when the samples are asked for, as a DataLoader does."""

    def __init__(self, sampler: Iterable[int], length: int) -> None:
        self._name = type(sampler).__name__
        self._rest = iter(sampler)
        self._length = length
        self._drawn: list[int] = []

    @overload
    def __getitem__(self, place: int, /) -> int: ...
    @overload
    def __getitem__(self, place: slice, /) -> list[int]: ...
    def __getitem__(self, place: int | slice, /) -> int | list[int]:
        stop = place.stop if isinstance(place, slice) else place + 1
        missing = (self._length if stop is None else stop) - len(self._drawn)
        self._drawn += islice(self._rest, max(0, missing))
        if missing > 0 and len(self._drawn) < (self._length if stop is None else stop):
            self._complain()
        return self._drawn[place]

    def end(self) -> None:
        """Draws all that is left."""
        self._drawn += self._rest
        if len(self._drawn) != self._length:
            self._complain()

    def _complain(self) -> None:
        raise UsageError(
            f"the sampler {self._name} drew {len(self._drawn)} samples, and "
            f"its __len__ says {self._length}: make the two agree"
        )


def order_of(sampler: Iterable[int], *, length: int, seed: int) -> Order:
    """The order that a DataLoader's sampler stands for."""
    if type(sampler) is SequentialSampler:
        return SequentialOrder(length)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == length:
        return ShuffledOrder(sampler, seed)
    return DrawnOrder(sampler)


def order_seed(generator: torch.Generator | None) -> int:
    """A seed for orders that nobody can draw, which leaves the generator (torch's own) as it is."""
    source = torch.default_generator if generator is None else generator
    copy = torch.Generator()
    copy.set_state(source.get_state())
    return int(torch.empty((), dtype=torch.int64).random_(generator=copy).item()) >> 8


@contextmanager
def undrawn(generator: torch.Generator | None) -> Iterator[None]:
    """What is drawn inside, from the generator or else from torch's own, counts as not drawn."""
    source = torch.default_generator if generator is None else generator
    before = source.get_state()
    try:
        yield
    finally:
        source.set_state(before)
