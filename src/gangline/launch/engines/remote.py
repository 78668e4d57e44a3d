# SPDX-License-Identifier: Apache-2.0
"""A job whose workers are started by agents on other machines: what all such engines prepare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.hosts.engine import END_BY, GRACE_S, worker_variables
from gangline.engines.job import Job
from gangline.launch.joining.code import Brought, root_of
from gangline.planning.known import known_profile
from gangline.protocol.agents import CHUNK_BYTES, Brief, File
from gangline.spec.cluster import Cluster, Node
from gangline.spec.config import ANY_ADDRESS, ANY_IPV6, TlsConfig
from gangline.spec.enclosure import Enclosure
from gangline.spec.errors import LaunchError
from gangline.spec.machines.hosts import split_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.engines.hosts.seat import Seat
    from gangline.files.tls import TlsFiles
    from gangline.launch.program import Program
    from gangline.spec.config import RunConfig
    from gangline.spec.machines.hosts import Host


def brief_of(host: Host, program: Program, *, run: str, brings: bool) -> Brief:
    folder = host.folder if host.folder or brings else str(Path.cwd())
    return Brief(
        run=run,
        host=host.name,
        folder=folder,
        script=_script_there(program, is_elsewhere=host.folder is not None, brings=brings),
        module=program.module,
        arguments=program.arguments,
        brings=brings,
        end_by=END_BY,
        grace_s=GRACE_S,
    )


def _script_there(program: Program, *, is_elsewhere: bool, brings: bool) -> str | None:
    """Where the script is on a host: in the same place of its folder, or at the same path."""
    if program.script is None:
        return None
    if brings:
        return program.script.relative_to(root_of(program)).as_posix()
    here = Path.cwd().resolve()
    if is_elsewhere and program.script.is_relative_to(here):
        return str(program.script.relative_to(here))
    return str(program.script)


def pieces(files: Sequence[Brought]) -> Iterator[File]:
    for file in files:
        is_first = True
        with file.path.open("rb") as opened:
            while (data := opened.read(CHUNK_BYTES)) or is_first:
                yield File(
                    name=file.name,
                    data=data,
                    is_first=is_first,
                    is_executable=file.is_executable,
                )
                is_first = False


def problems(seats: Sequence[Seat]) -> str:
    return "; ".join(f"host {one.host.name}: {one.problem}" for one in seats if one.problem)


def chosen(seats: Sequence[Seat], most: int) -> dict[str, int]:
    """The workers of the hosts that are ready, in the order of the file, up to so many."""
    counts: dict[str, int] = {}
    for seat in seats:
        if seat.is_ready and seat.here is not None:
            there = seat.host.num_workers(seat.here.devices)
            counts[seat.host.name] = min(there, most - sum(counts.values()))
    return {name: count for name, count in counts.items() if count}


def job_of(
    config: RunConfig,
    program: Program,
    folder: Path,
    seats: Sequence[Seat],
    founders: dict[str, int],
    *,
    tls: TlsFiles | None = None,
) -> Job:
    """The job that those begin who have come; `tls` are certificates that are there already."""
    cluster = Cluster(nodes=tuple(Node(name=name, workers=n) for name, n in founders.items()))
    shares = config.batch.shares
    workers = len(cluster.worker_nodes)
    if shares is not None and len(shares) != workers:
        raise LaunchError(
            f"--shares has {len(shares)} shares, and {workers} workers have come: "
            f"{problems(seats) or 'give one per worker'}"
        )
    tree = config.exchange.tree
    if tree is not None and {*tree.workers} != {*range(workers)}:
        raise LaunchError(
            f"--structure is a plan for other workers than the {workers} that have come: "
            f"{problems(seats) or 'plan for these hosts'}"
        )
    by_name = {seat.host.name: seat for seat in seats}
    enclosures = tuple(
        Enclosure(host=name, variables=variables)
        for name, count in founders.items()
        for variables in worker_variables(by_name[name], count)
    )
    listen = config.hosts.listen or (ANY_IPV6 if _see_ipv6(seats) else ANY_ADDRESS)
    resolved = msgspec.structs.replace(
        config,
        cluster=cluster,
        tls=TlsConfig(enabled=True),
        hosts=msgspec.structs.replace(config.hosts, listen=listen),
    )
    return Job(
        config=resolved,
        run_dir=folder,
        script=program.script,
        module=program.module,
        arguments=program.arguments,
        tls=tls or _certificates(resolved, folder, seats),
        profile=known_profile(cluster) if config.exchange.is_planned else None,
        enclosures=enclosures,
    )


def _see_ipv6(seats: Sequence[Seat]) -> bool:
    return any(one.here is not None and ":" in (one.here.seen_from or "") for one in seats)


def _certificates(config: RunConfig, folder: Path, seats: Sequence[Seat]) -> TlsFiles:
    """An authority for the run, and a certificate for all addresses at which hosts may look for it."""
    from gangline.files.certificates import Authority, own_hosts, write_tls_files

    asked = [one.host.coordinator for one in seats if one.host.coordinator is not None]
    seen = [one.here.seen_from for one in seats if one.here is not None and one.here.seen_from]
    hosts = own_hosts(
        config.hosts.listen_at[0],
        *(split_place(one, name="coordinator")[0] for one in asked),
        *(one.partition("%")[0] for one in seen),
    )
    authority = Authority.make(config.run)
    certificate, key = authority.issue(hosts)
    return write_tls_files(
        folder, certificate, key, authority=authority.pem, authority_key=authority.key_pem
    )
