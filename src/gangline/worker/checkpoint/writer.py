# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints in the background, by the worker of rank 0.

The copy of the state is taken between two batches, in the training loop's own thread, so it is whole;
hashing and writing go on beside the training. Nothing here raises into the loop: what could not be
kept is said in the event log, and tried again later.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gangline.protocol.messages import CheckpointWritten
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision
from gangline.worker.checkpoint.files import CheckpointFolder, Contents, Manifest
from gangline.worker.checkpoint.state import capture
from gangline.worker.session import now

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.spec.position import Position
    from gangline.worker.groups.membership import Membership
    from gangline.worker.groups.snapshot import Snapshot
    from gangline.worker.prepare.handshake import Introduction
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.session import Session

_log = logging.getLogger(__name__)

DEFAULT_EVERY = 100
DEFAULT_KEEP = 3
_AGREEMENT_WAIT_S = 5.0
_CLOSE_WAIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Where, how often and how many."""

    folder: Path
    every: int
    keep: int

    def __post_init__(self) -> None:
        if self.folder == Path():
            raise UsageError('checkpoint is a folder, such as checkpoint="checkpoints", not ""')
        if self.every < 1:
            raise UsageError(f"every is a number of steps, at least 1, not {self.every}")
        if self.keep < 1:
            raise UsageError(f"keep is a number of checkpoints, at least 1, not {self.keep}")


class _Copy(NamedTuple):
    """A state that is to be written."""

    manifest: Manifest
    contents: Contents
    group: int
    took_s: float


class Checkpointer:
    """Owns the thread that writes. One checkpoint at a time: while one is written, none is taken."""

    def __init__(
        self,
        options: CheckpointOptions,
        *,
        session: Session,
        prepared: Prepared,
        introduction: Introduction,
        seed: int,
        first_step: int,
    ) -> None:
        self._folder = CheckpointFolder(options.folder)
        self._options = options
        self._session = session
        self._prepared = prepared
        self._introduction = introduction
        self._seed = seed
        self._last_step = first_step
        self._thread: threading.Thread | None = None
        self.before: Callable[[], None] = lambda: None
        """Called before a copy is taken: what is wrong with the state shall be said before."""

    def offer(
        self,
        position: Position,
        snapshot: Snapshot,
        membership: Membership,
        *,
        is_asked: bool = False,
    ) -> bool:
        """The loop is between two batches: takes a copy if one is due and nothing is being written.

        Or if one was asked for. False: it must be offered again, since another one is being written.
        """
        every = self._options.every
        is_due = position.step // every > self._last_step // every
        is_due = is_due or (is_asked and position.step > self._last_step)
        if not is_due or self._session.group.rank != 0:
            return True
        if self._thread is not None and self._thread.is_alive():
            return False
        self._take(position, snapshot, membership)
        return True

    def keep_last(self, position: Position, snapshot: Snapshot, membership: Membership) -> None:
        """Nobody will have the state of the job after this: keeps it, due or not, and waits for it."""
        self.close()
        if position.step > self._last_step:
            self._take(position, snapshot, membership)
            self.close()

    def _take(self, position: Position, snapshot: Snapshot, membership: Membership) -> None:
        self._last_step = position.step
        started_s = time.perf_counter()
        try:
            self.before()
            contents = capture(self._prepared, snapshot, membership.results)
        except Exception as error:  # the user's own state_dict may raise anything
            self._tell_failure(position.step, error)
            return
        copy = _Copy(
            self._manifest(position), contents, membership.group, time.perf_counter() - started_s
        )
        self._thread = threading.Thread(
            target=self._write, args=(copy,), name="gangline-checkpoint", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Waits until what was taken is written; where that takes too long, says so."""
        if self._thread is None:
            return
        self._thread.join(_CLOSE_WAIT_S)
        if self._thread.is_alive():
            reason = (
                f"the checkpoint of step {self._last_step} is missing from {self._folder.root}: it was "
                f"still being written {_CLOSE_WAIT_S:.0f} s after the end of the script (look whether "
                "that disk is well)"
            )
            self._tell("checkpoint_failed", reason, self._last_step)
            _log.warning("%s", reason)

    def _manifest(self, position: Position) -> Manifest:
        return Manifest(
            run=self._session.place.run,
            worker=self._session.place.worker,
            step=position.step,
            epoch=position.epoch,
            start=position.start,
            seed=self._seed,
            introduction=self._introduction,
        )

    # --- in the background -----------------------------------------------------------------------

    def _write(self, copy: _Copy) -> None:
        step = copy.manifest.step
        started_s = time.perf_counter()
        try:
            latest = self._folder.latest()
            if latest is not None and step <= latest:
                # The job went on without this worker, which does not know it yet.
                self._tell("checkpoint_refused", f"step {latest} was kept by another worker", step)
                return
            self._folder.write(copy.manifest, copy.contents)
            if not self._settle(step, copy.group):
                return
        except Exception as error:
            self._tell_failure(step, error)
            return
        files = copy.contents.tensors.values()
        self._tell(
            "checkpoint_written",
            f"checkpoint {self._folder.path_of(step)}",
            step,
            bytes=sum(tensor.nbytes for tensors in files for tensor in tensors.values()),
            copy_s=copy.took_s,
            write_s=time.perf_counter() - started_s,
        )

    def _settle(self, step: int, group: int) -> bool:
        """Moves the marker if the coordinator agrees, and removes what is too old."""
        client = self._session.client
        answer = None
        if client is not None:
            answer = client.ask(CheckpointWritten(step=step, group=group), _AGREEMENT_WAIT_S)
        if answer is not None and not answer.is_agreed:
            self._folder.remove(step)
            self._tell("checkpoint_refused", answer.reason, step)
            return False
        if answer is None and client is not None:
            reason = f"the coordinator did not answer: `latest` does not name step {step} yet"
            self._tell("checkpoint_unconfirmed", reason, step)
        else:
            self._folder.move_latest(step)
        self._folder.prune(step, keep=self._options.keep)
        return True

    def _tell_failure(self, step: int, error: Exception) -> None:
        reason = (
            f"the checkpoint of step {step} is missing from {self._folder.root}: {error} "
            "(training goes on)"
        )
        self._tell("checkpoint_failed", reason, step)
        _log.warning("%s", reason)

    def _tell(self, what: str, reason: str, step: int, **numbers: float) -> None:
        self._session.record(
            Decision(t=now(), what=what, reason=reason, numbers={"step": step, **numbers})
        )
