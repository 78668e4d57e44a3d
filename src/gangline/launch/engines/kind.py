# SPDX-License-Identifier: Apache-2.0
"""What the launcher asks of an engine, before and while it runs a job there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gangline.engines.engine import Engine
    from gangline.engines.job import Job
    from gangline.engines.supervision import Watcher
    from gangline.launch.program import Program
    from gangline.spec.config import RunConfig

Tell: TypeAlias = Callable[[str], None]
"""Shows a line to who typed the command, before the job begins."""


def silent(line: str) -> None:
    """Nobody is told."""


class PreparedRun(NamedTuple):
    """A job that can be run at once."""

    job: Job
    make_engine: Callable[[Watcher], Engine] | None = None
    """What starts its workers; None: they are processes of this machine."""


class EngineKind(Protocol):
    """One engine, such as `ssh` or `mpirun`, as `gangline run --on` knows it."""

    def check(self, config: RunConfig) -> None:
        """Refuses what cannot be run here: raises an error that says what is missing, and what to do.

        Called before anything is started or written. It names a package that is not installed, a
        launcher that is not found, a version that does not fit.
        """

    def submit(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> str | None:
        """Hands the whole run to the engine, and says what became of it; None: it is run by us."""

    def prepared(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> AbstractContextManager[PreparedRun]:
        """The job of a resolved configuration; what was started for it is ended with the context."""
