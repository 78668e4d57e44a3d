# SPDX-License-Identifier: Apache-2.0
"""The slots of a run: Spark jobs of one long task each, started again when Spark gives one up.

One job per slot, because Spark ends a whole job when one of its tasks has failed too often (in local
mode, once): the others would be lost with it. In the strict form all tasks are one barrier stage,
which Spark starts together, and starts again together.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from gangline.engines.spark.checks import explained
from gangline.engines.spark.task import Handed, hold_slot
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gangline.engines.spark.rows.index import RowIndex
    from gangline.protocol.calling import Invitation

MAX_FAILURES = 20
"""A slot whose job fails so often is given up."""
FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 15.0
_JOIN_S = 30.0
_FINISH_S = 300.0
"""How long the trained state may take to come back."""
_LOOK_S = 0.05


class SparkSlots:
    """What the launcher starts agents by."""

    def __init__(
        self,
        context: Any,
        count: int,
        *,
        is_strict: bool = False,
        work: bytes | None = None,
        index: RowIndex | None = None,
        folder: str | None = None,
        prefix: str = "gangline",
    ) -> None:
        self._context = context
        self._count = count
        self._is_strict = is_strict
        self._given = {"work": work, "index": index, "folder": folder}
        self._prefix = prefix
        self._tag = f"gangline-{secrets.token_hex(8)}"
        self._handed: Any = None
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._given_up: dict[int, str] = {}
        self._is_done = False
        self._states: list[bytes] = []

    @property
    def expected(self) -> int:
        """How many agents come."""
        return self._count

    def start(self, invitation: Invitation, run_dir: Path) -> None:
        """Has Spark start the tasks; they come as it has room for them."""
        from pyspark import InheritableThread

        handed = Handed(invitation=invitation.line(), **self._given)  # type: ignore[arg-type]
        self._handed = self._context.broadcast(handed)
        slots = [-1] if self._is_strict else range(self._count)
        for slot in slots:
            thread = InheritableThread(target=self._keep, args=(slot,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def problem(self) -> str | None:
        """Why no more agents come; None: some may."""
        with self._lock:
            is_over = len(self._given_up) >= len(self._threads) and bool(self._threads)
            return next(iter(self._given_up.values())) if is_over else None

    @property
    def states(self) -> list[bytes]:
        """What workers have left for the driver, as it comes."""
        with self._lock:
            return list(self._states)

    def finish(self) -> None:
        """The job is done: waits until a task has brought what its worker has left."""
        self._is_done = True
        deadline = time.monotonic() + _FINISH_S
        while not self.states and time.monotonic() < deadline:
            if not any(thread.is_alive() for thread in self._threads):
                return
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Ends all tasks, and takes back what was handed to them."""
        self._closing.set()
        if self._threads:
            self._context.cancelJobsWithTag(self._tag)
            self._join(_JOIN_S)
        if self._handed is not None:
            self._handed.destroy()
            self._handed = None

    def _join(self, limit_s: float) -> None:
        for thread in self._threads:
            thread.join(limit_s)

    def _keep(self, slot: int) -> None:
        """Keeps one slot, or in the strict form all of them, until the run is over."""
        self._context.addJobTag(self._tag)
        self._context.setInterruptOnCancel(True)
        name = "all slots" if slot < 0 else f"slot {slot}"
        self._context.setJobDescription(f"{self._prefix}: {name}")
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, MAX_FAILURES + 1):
            if self._closing.is_set():
                return
            try:
                self._take(self._run_all() if slot < 0 else [self._run_one(slot)])
            except (
                Exception
            ) as error:  # py4j's, Spark's, python's: whatever it is, the task is gone
                why = explained(error)
                is_hopeless = isinstance(why, LaunchError) or attempt == MAX_FAILURES
                if self._closing.is_set() or self._is_done:
                    return
                if is_hopeless or self._is_strict:
                    self._give_up(slot, f"{why}".splitlines()[0] if str(why) else repr(why))
                    return
            else:
                return
            if self._closing.wait(pause_s):
                return
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def _run_one(self, slot: int) -> list[bytes]:
        tasks = self._context.parallelize(range(self._count), self._count)
        found: list[bytes] = self._context.runJob(tasks, _task(self._handed), [slot])
        return found

    def _run_all(self) -> list[list[bytes]]:
        tasks = self._context.parallelize(range(self._count), self._count).barrier()
        found: list[list[bytes]] = tasks.mapPartitions(_task(self._handed)).glom().collect()
        return found

    def _take(self, results: list[list[bytes]]) -> None:
        """What each of some tasks has brought, in pieces; most bring nothing."""
        with self._lock:
            self._states += [b"".join(pieces) for pieces in results if pieces]

    def _give_up(self, slot: int, why: str) -> None:
        with self._lock:
            self._given_up[slot] = (
                f"Spark has given up {'the stage' if slot < 0 else 'a slot'}: {why}"
            )


def _task(handed: Any) -> Callable[[Any], Any]:
    """What Spark runs in a slot: it finds the rest in the broadcast."""

    def run(numbers: Any) -> Any:
        return hold_slot(handed.value, next(iter(numbers)))

    return run
