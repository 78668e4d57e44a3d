# SPDX-License-Identifier: Apache-2.0
"""Runs on this machine: folder, certificates and enclosures of a job of local processes."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.emulation.scaling import describe_scale, scale_speeds
from gangline.engines.job import Job, count_cores
from gangline.launch.certificates import find_tls_files, own_files_of
from gangline.launch.emulation import enclosed
from gangline.launch.engines.kind import PreparedRun
from gangline.launch.folder import make_run_dir
from gangline.planning.known import known_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.launch.engines.kind import Tell
    from gangline.launch.program import Program
    from gangline.spec.config import RunConfig


@contextmanager
def prepared(config: RunConfig, program: Program, *, run_dir: Path | None = None) -> Iterator[Job]:
    """The job that a resolved configuration comes to: its folder, certificates and enclosures."""
    name, folder = make_run_dir(
        Path(program.name),
        name=config.run or None,
        run_dir=run_dir,
        resume=config.checkpoint.resume,
    )
    files = find_tls_files(
        folder,
        own=own_files_of(config),
        makes=config.tls.enabled,
        run=name,
        hosts=(config.listen.host, *config.listen.names),
    )
    asked = [node.speed for node in config.cluster.worker_nodes]
    job = Job(
        config=msgspec.structs.replace(config, run=name),
        run_dir=folder.resolve(),
        script=program.script,
        module=program.module,
        arguments=program.arguments,
        tls=files,
        scale=scale_speeds(asked, count_cores()).scale,
        profile=known_profile(config.cluster) if config.exchange.is_planned else None,
    )
    with enclosed(job) as put:
        yield put


class LocalRuns:
    """The engine `local`."""

    def check(self, config: RunConfig) -> None:
        """Nothing is needed."""

    def submit(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> str | None:
        """It is run by us."""
        return None

    @contextmanager
    def prepared(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> Iterator[PreparedRun]:
        """The job, with a word on speeds that had to be scaled to fit this machine."""
        with prepared(config, program, run_dir=run_dir) as job:
            asked = [node.speed for node in config.cluster.worker_nodes]
            scaled = describe_scale(asked, scale=job.scale, cores=count_cores())
            if scaled:
                tell(scaled)
            yield PreparedRun(job)


ENGINE = LocalRuns()
