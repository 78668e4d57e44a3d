# SPDX-License-Identifier: Apache-2.0
"""How a worker ended, and how the whole job did."""

from __future__ import annotations

import signal

import msgspec

_OUT_OF_MEMORY = ("MemoryError", "can't allocate memory", "out of memory")


class WorkerResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one worker process."""

    worker: int
    exit_code: int | None
    """What the process returned; None where a signal ended it."""
    signal: str | None
    """The name of the signal that ended the process, such as `SIGKILL`."""
    stopped: bool = False
    """The launcher ended it, because of another worker or because it was told to."""
    traceback: str | None = None
    """The last traceback in the worker's log, where it failed."""
    note: str | None = None
    """Why the launcher ended this worker alone, and not the job."""
    is_lost: bool = False
    """Its host is not reached any more: how it ended is not known."""

    @property
    def has_failed(self) -> bool:
        """It ended badly, and by itself."""
        return not self.stopped and self.exit_code != 0

    @property
    def ran_out_of_memory(self) -> bool:
        """Its script ended because there was no memory left."""
        is_error = self.has_failed and self.signal is None
        return is_error and any(words in self.reason for words in _OUT_OF_MEMORY)

    @property
    def was_left_behind(self) -> bool:
        """It was stopped for so long that the others ended the job without it."""
        return self.has_failed and "errors.LeftBehind" in self.reason

    @property
    def was_refused(self) -> bool:
        """The coordinator wanted it no more, while others trained on."""
        return self.has_failed and "errors.RefusedError" in self.reason

    @property
    def was_put_out(self) -> bool:
        """Its gradient was wrong, and the job wanted no such worker."""
        return self.has_failed and "errors.GradientError" in self.reason

    @property
    def reason(self) -> str:
        """How it ended, in a few words."""
        if self.note is not None:
            return self.note
        if self.stopped:
            return "stopped by the launcher"
        if self.signal is not None:
            return f"killed by {self.signal}"
        if self.exit_code == 0:
            return "done"
        if self.traceback is not None:
            return error_line(self.traceback)
        return f"exit code {self.exit_code}"

    @classmethod
    def of_returncode(
        cls,
        worker: int,
        returncode: int,
        *,
        stopped: bool,
        traceback: str | None,
        note: str | None = None,
    ) -> WorkerResult:
        """From what `subprocess` says: a negative return code is a signal."""
        killed = returncode < 0
        return cls(
            worker=worker,
            exit_code=None if killed else returncode,
            signal=signal.Signals(-returncode).name if killed else None,
            stopped=stopped,
            traceback=traceback,
            note=note,
        )


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a job: what all its workers did, and whose fault a failure was."""

    status: str
    """`done`, `failed` or `interrupted`."""
    reason: str
    wall_s: float
    workers: tuple[WorkerResult, ...]
    """In worker order."""
    cause: WorkerResult | None = None
    """The worker that made the job fail."""
    interrupted_by: int | None = None
    """The number of the signal that the launcher got."""
    has_departed: bool = False
    """Whether its workers here left because this machine is about to end."""

    @property
    def exit_code(self) -> int:
        """What a launcher that ran this job should return."""
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        return 0 if self.status == "done" else 1


def error_line(traceback: str) -> str:
    """The line of a traceback that names the error: the first after the last frame."""
    lines = traceback.splitlines()
    frames = [index for index, line in enumerate(lines) if line.startswith((" ", "Traceback"))]
    after = lines[frames[-1] + 1 :] if frames else lines
    return next((line for line in after if line.strip()), lines[-1] if lines else "")
