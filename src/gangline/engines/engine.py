# SPDX-License-Identifier: Apache-2.0
"""What all engines do, wherever their workers run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from gangline.engines.local import WorkerCommand
    from gangline.engines.result import WorkerResult


class Engine(Protocol):
    """The workers of one job. As a context manager it stops what still runs."""

    def __enter__(self) -> Engine: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    def running(self) -> tuple[int, ...]:
        """The workers that have not ended, as of the last `poll`."""

    @property
    def results(self) -> tuple[WorkerResult, ...]:
        """The workers that have ended, in worker order."""

    def start(self) -> None:
        """Starts all workers."""

    def add(self, command: WorkerCommand) -> None:
        """Starts one more worker."""

    def poll(self) -> list[WorkerResult]:
        """The workers that have ended since the last call."""

    def kill(self, worker: int, *, note: str | None = None) -> WorkerResult:
        """Kills a running worker; `note` says why, in its result."""

    def is_stopped(self, worker: int) -> bool:
        """Whether a running worker is stopped by a signal."""

    def ask_to_end(self) -> None:
        """Has all workers leave their job politely, and waits for nothing."""

    def stop(self, *, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Ends all workers: asks first, kills after a grace, which is over where it `is_hurried`."""
