# SPDX-License-Identifier: Apache-2.0
"""`gangline run --on ray`: a script, by workers in the actors of a Ray cluster."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.engines.ray.cluster import check_ray, connected
from gangline.launch.engines.ray.preparing import prepared_in_ray
from gangline.launch.engines.remote import pieces
from gangline.launch.joining.code import select_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.launch.engines.kind import PreparedRun, Tell
    from gangline.launch.program import Program
    from gangline.spec.config import RunConfig


class RayRuns:
    """The engine `ray`."""

    def check(self, config: RunConfig) -> None:
        """Ray must be installed, in a version that fits."""
        check_ray()

    def submit(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> str | None:
        """It is run by us."""
        return None

    @contextmanager
    def prepared(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> Iterator[PreparedRun]:
        """The job of the actors that come."""
        include = [Path(one) for one in config.hosts.include]
        files = select_files(program, include) if config.hosts.bring else []
        with (
            connected(config.ray),
            prepared_in_ray(
                config,
                program,
                run_dir=run_dir,
                tell=tell,
                files=lambda: pieces(files),
                services={},
            ) as found,
        ):
            yield found


ENGINE = RayRuns()
