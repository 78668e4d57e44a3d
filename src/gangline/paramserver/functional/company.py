# SPDX-License-Identifier: Apache-2.0
"""The processes of a job that compute together, as far as `gangline.paramserv` must know them.

This package knows no jobs: whoever has found its peers says so, by `provide`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group

SERVER = 0
"""The rank of the process that holds the model."""


class Company(Protocol):
    """All processes of the job that are there, in rank order, from when they have met."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def meet(self, payload: bytes) -> list[bytes]:
        """What all of them bring, in rank order. All call it, and it says who they are."""
        ...

    def pair(self, peer: int) -> Group:
        """A group of two with that rank; both must call it. Raises an ExchangeError if it is gone."""
        ...


_providers: list[Callable[[], Company]] = []


def provide(find: Callable[[], Company]) -> None:
    """From here on `find` says with whom this process computes. Raises UsageError where with nobody."""
    _providers[:] = [find]


def present_company() -> Company:
    """The processes of this job. Raises UsageError where there is none."""
    if not _providers:
        raise UsageError(
            "where='job' is for a script that `gangline run`, `gangline up` or torchrun has started, "
            "and this process has not called gangline.init(). To do: call it first; or compute on this "
            "machine alone, with where='threads' or where='processes'"
        )
    return _providers[0]()
