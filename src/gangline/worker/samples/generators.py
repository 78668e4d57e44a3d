# SPDX-License-Identifier: Apache-2.0
"""The random numbers that a sampler has of its own, and draws from on rank 0 alone.

Their state goes to the others with what was drawn, so that any of them can go on as rank 0. They are
found among the attributes of the sampler, and of samplers inside of it.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.utils.data import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_GLOBAL = (torch.default_generator, random._inst, np.random.mtrand._rand)
"""What the whole process draws from: those of the workers must differ, for their dropout masks."""


class Numbers(Protocol):
    """Random numbers whose state can be kept, as those of a `torch.Generator`."""

    def get_state(self) -> torch.Tensor: ...

    def set_state(self, state: torch.Tensor, /) -> Any: ...


class _Foreign:
    """Those of Python or numpy, whose state is kept as text."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self._get = get
        self._put = put

    def get_state(self) -> torch.Tensor:
        text = json.dumps(self._get(), default=_to_json)
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        self._put(json.loads(bytes(state.tolist()), object_hook=_from_json))


def find_numbers(sampler: Any) -> dict[str, Numbers]:
    """The random numbers of a sampler, by the names of the attributes that hold them."""
    found: dict[str, Numbers] = {}
    seen: set[int] = set()
    for path, value in _attributes(sampler, "", seen):
        numbers = _numbers_of(value)
        if numbers is not None and id(value) not in seen:
            seen.add(id(value))
            found[path] = numbers
    return found


def states_of(sampler: Any) -> dict[str, torch.Tensor]:
    """How a sampler's random numbers are now."""
    return {name: numbers.get_state() for name, numbers in find_numbers(sampler).items()}


def set_states(sampler: Any, states: dict[str, torch.Tensor]) -> None:
    """Makes a sampler's random numbers those of another worker's."""
    for name, numbers in find_numbers(sampler).items():
        if name in states:
            numbers.set_state(states[name])


def _attributes(owner: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """All attributes of a sampler, and of those inside of it."""
    seen.add(id(owner))
    for name, value in getattr(owner, "__dict__", {}).items():
        several = value if isinstance(value, list | tuple) else (value,)
        for place, one in enumerate(several):
            path = f"{prefix}{name}" if several is not value else f"{prefix}{name}[{place}]"
            yield path, one
            if isinstance(one, Sampler) and id(one) not in seen:
                yield from _attributes(one, f"{path}.", seen)


def _numbers_of(value: Any) -> Numbers | None:
    if any(value is one for one in _GLOBAL):
        return None
    if isinstance(value, torch.Generator):
        return value
    if type(value) is random.Random:
        return _Foreign(value.getstate, lambda state: value.setstate(_tuples(state)))
    if isinstance(value, np.random.RandomState):
        return _Foreign(lambda: value.get_state(legacy=False), value.set_state)
    if isinstance(value, np.random.Generator):
        source = value.bit_generator
        return _Foreign(lambda: source.state, lambda state: setattr(source, "state", state))
    return None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a state holds a {type(value).__name__}")


def _from_json(value: dict[str, Any]) -> Any:
    if value.keys() == {"array", "dtype"}:
        return np.array(value["array"], dtype=value["dtype"])
    return value
