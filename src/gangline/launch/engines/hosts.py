# SPDX-License-Identifier: Apache-2.0
"""A run on machines that are reached by ssh: those that come found the job, others join later."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.hosts.engine import HostsEngine
from gangline.engines.hosts.line import HostLine
from gangline.engines.hosts.seat import Seat
from gangline.launch.engines.kind import PreparedRun
from gangline.launch.engines.remote import brief_of, chosen, job_of, pieces, problems
from gangline.launch.folder import make_run_dir
from gangline.launch.joining.code import Brought, select_files
from gangline.spec.errors import LaunchError
from gangline.spec.machines.hosts import read_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.launch.engines.kind import Tell
    from gangline.launch.program import Program
    from gangline.spec.config import HostsConfig, RunConfig
    from gangline.spec.machines.hosts import Host

_POLL_S = 0.02
_CLOSE_S = 3.0


class SshHosts:
    """The engine `hosts`."""

    def check(self, config: RunConfig) -> None:
        """Whether ssh works is seen host by host."""

    def submit(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> str | None:
        """It is run by us."""
        return None

    @contextmanager
    def prepared(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> Iterator[PreparedRun]:
        """The job of those hosts that are reached; `tell` hears of the others."""
        assert config.hosts.file is not None
        hosts = read_hosts(Path(config.hosts.file))
        include = [Path(one) for one in config.hosts.include]
        files = select_files(program, include) if config.hosts.bring else []
        name, folder = make_run_dir(
            Path(program.name),
            name=config.run or None,
            run_dir=run_dir,
            resume=config.checkpoint.resume,
        )
        named = msgspec.structs.replace(config, run=name)
        folder = folder.resolve()
        seats = tuple(_seat(host, named, program, files, folder) for host in hosts)
        try:
            founders = _gather(seats, config.hosts, tell)
            job = job_of(named, program, folder, seats, founders)
            yield PreparedRun(job, lambda watcher: HostsEngine(job, seats, watcher=watcher))
        finally:
            lines = [line for seat in seats if (line := seat.close()) is not None]
            deadline = time.monotonic() + _CLOSE_S
            for line in lines:
                line.await_end(deadline)


ENGINE = SshHosts()


def _seat(
    host: Host, config: RunConfig, program: Program, files: Sequence[Brought], folder: Path
) -> Seat:
    log = folder / "hosts" / f"{host.name}.log"
    return Seat(
        host,
        brief=brief_of(host, program, run=config.run, brings=config.hosts.bring),
        files=lambda: pieces(files),
        listen=config.hosts.listen_at[0],
        make_line=lambda: HostLine(host, log=log),
    )


def _gather(seats: Sequence[Seat], asked: HostsConfig, tell: Tell) -> dict[str, int]:
    """How many workers each of the hosts that have come begins with. Raises LaunchError for too few."""
    most = asked.max_workers or sys.maxsize
    begun_s = time.monotonic()
    told: dict[str, str] = {}
    while True:
        for seat in seats:
            seat.look()
            if seat.problem is not None and told.get(seat.host.name) != seat.problem:
                told[seat.host.name] = seat.problem
                tell(f"host {seat.host.name} does not take part yet: {seat.problem}")
        counts = chosen(seats, most)
        is_late = time.monotonic() - begun_s >= asked.wait_s
        has_all = all(seat.is_ready for seat in seats) or sum(counts.values()) >= most
        if has_all or (is_late and all(seat.is_tried for seat in seats)):
            break
        time.sleep(_POLL_S)
    if sum(counts.values()) < asked.min_workers:
        raise LaunchError(
            f"{sum(counts.values())} workers can begin, and it takes {asked.min_workers} "
            f"(--min-workers, --wait): {problems(seats) or 'the hosts have no more'}"
        )
    return counts
