# SPDX-License-Identifier: Apache-2.0
"""Who may take part in a job: what is wrong with a hello, and which number its worker gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.coordinator.sanity import MAX_WORKERS
from gangline.protocol.messages import PROTOCOL_VERSION, Hello
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gangline.protocol.status import WorkerStatus


def check_hello(hello: Hello, *, run: str, known: WorkerStatus | None) -> None:
    """Raises UsageError, for the worker to read, if it does not belong here.

    `known` is the worker that has its number already, if there is one.
    """
    if hello.protocol != PROTOCOL_VERSION:
        raise UsageError(
            f"worker {hello.worker} speaks protocol {hello.protocol}, this coordinator "
            f"{PROTOCOL_VERSION}: install the same gangline everywhere"
        )
    if hello.run != run:
        raise UsageError(
            f"worker {hello.worker} belongs to run {hello.run!r}, this is the coordinator of run "
            f"{run!r}: check the address"
        )
    is_same = known is not None and (known.host, known.pid) == (hello.host, hello.pid)
    if known is not None and known.is_connected and not is_same:
        raise UsageError(
            f"worker {hello.worker} is already here (process {known.pid} on {known.host}): every "
            "process needs a number of its own"
        )


def check_elastic(hellos: Iterable[Hello], *, what: str) -> None:
    """Raises UsageError if one of these workers cannot see others come and go."""
    if not all(hello.is_elastic for hello in hellos):
        raise UsageError(
            f"nobody can {what} this job while it runs: its transport does not let workers come and "
            "go; start it with --transport wire"
        )


def number_of(hello: Hello, *, hellos: Mapping[int, Hello], reserved: int) -> int:
    """The number of a worker: its own, the one that it was given before, or a new one."""
    if hello.worker >= 0:
        return hello.worker
    for worker, known in hellos.items():
        if (known.host, known.pid, known.address) == (hello.host, hello.pid, hello.address):
            return worker
    number = max([*hellos, reserved - 1], default=-1) + 1
    if number >= MAX_WORKERS:
        raise UsageError(f"this job has had {MAX_WORKERS} workers: it takes in no more")
    return number
