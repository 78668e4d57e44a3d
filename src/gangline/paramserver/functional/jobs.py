# SPDX-License-Identifier: Apache-2.0
"""`where="job"`: the processes of a job compute, and the first of them has the server, too.

Each runs the same script, so each has the functions and the data. They compare what they were asked
for, and then the server gives each of them portions, as it does with processes of its own.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from gangline.paramserver.functional.company import SERVER, present_company
from gangline.paramserver.functional.peers import (
    Over,
    Peer,
    Raised,
    ended,
    failed,
    follow,
    result_of,
)
from gangline.paramserver.functional.result import Epoch, Trained
from gangline.paramserver.functional.running import ledger_of, train
from gangline.spec.errors import ExchangeError, LaunchError, MismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.paramserver.functional.arguments import Settings
    from gangline.paramserver.functional.company import Company
    from gangline.paramserver.functional.computing import Job
    from gangline.paramserver.functional.cuts import Keeper
    from gangline.paramserver.functional.leaves import Leaves
    from gangline.paramserver.functional.running import Validate


_SHORT = 100
"""Up to so many characters an argument is compared as it is."""


class Colleagues:
    """All processes of the job, which were asked for the same."""

    def __init__(self, company: Company) -> None:
        self._company = company

    @classmethod
    def meet(cls, asked: dict[str, str], *, workers: int | None) -> Self:
        """Waits for all of them. Raises the same MismatchError on all where one was asked otherwise."""
        company = present_company()
        told = company.meet(msgspec.msgpack.encode(asked))
        first, *others = [msgspec.msgpack.decode(one, type=dict[str, str]) for one in told]
        for rank, other in enumerate(others, start=1):
            for name, expected in first.items():
                if other.get(name) != expected:
                    raise MismatchError(
                        f"worker {rank} calls paramserv with {name}: {other.get(name)}, and worker 0 "
                        f"with {expected}; all processes of a job must call it alike"
                    )
        if workers is not None and workers != company.size:
            raise UsageError(
                f"workers={workers}, and the job has {company.size} processes: with where='job' these "
                "are the workers; leave it out"
            )
        return cls(company)

    @property
    def size(self) -> int:
        """How many they are."""
        return self._company.size

    def train(
        self,
        settings: Settings,
        job: Job,
        model: Leaves,
        judge: Validate,
        keeper_of: Callable[[], Keeper | None],
    ) -> Trained:
        """The same result on all of them, or the same error."""
        _check_arrays(model)
        if self._company.rank == SERVER:
            return self._serve(settings, job, model, judge, keeper_of)
        return self._work(settings, job, model)

    def _serve(
        self,
        settings: Settings,
        job: Job,
        model: Leaves,
        judge: Validate,
        keeper_of: Callable[[], Keeper | None],
    ) -> Trained:
        peers = [self._peer(rank, model, settings) for rank in range(1, self.size)]
        how: Over | Raised = Raised(kind="LaunchError", text="the run was broken off")
        try:
            trained = train(settings, job, model, judge, keeper_of(), peers)
            how = ended(trained, job.model_form.leaves(trained.model, "the model"))
            return trained
        except BaseException as error:
            how = failed(error)
            raise
        finally:
            for peer in peers:
                peer.end(how)

    def _peer(self, rank: int, model: Leaves, settings: Settings) -> Peer:
        company = self._company
        return Peer(lambda: company.pair(rank), like=model, patience_s=settings.patience_s)

    def _work(self, settings: Settings, job: Job, model: Leaves) -> Trained:
        ledger = ledger_of(settings, job.features.num_rows)
        try:
            over = follow(
                self._company.pair(SERVER),
                job,
                ledger.portion,
                worker=self._company.rank,
                like=model,
            )
        except ExchangeError as error:
            raise LaunchError(
                "the process that has the server (worker 0) is gone, or has given this one up: "
                f"{error}. To do: start the job again; with checkpoint= it goes on from the last epoch "
                "that was kept"
            ) from error
        leaves, rest = result_of(over, model)
        history = tuple(msgspec.convert(rest.pop("history"), list[Epoch]))
        return Trained(model=job.model_form.build(leaves), history=history, **rest)


def _check_arrays(model: Leaves) -> None:
    """Refuses arrays that cannot travel, before anybody computes."""
    for number, leaf in enumerate(model):
        if isinstance(leaf, np.ndarray) and leaf.dtype.name not in (
            "float16",
            "float32",
            "float64",
        ):
            raise UsageError(
                f"array {number} of the model is {leaf.dtype}, which cannot be sent to other "
                "processes: make it float64, or use where='threads'"
            )


def shown(value: Any) -> str:
    """An argument as it is compared: plain values as they are, data by shape, the rest by name."""
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__name__))
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__}{list(shape)}"
    try:
        text = msgspec.json.encode(value, order="deterministic").decode()
    except (TypeError, ValueError):  # such as an object of the user's own, or arrays in a dict
        return type(value).__name__
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}… {sha256(text.encode()).hexdigest()}"
