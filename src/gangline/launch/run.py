# SPDX-License-Identifier: Apache-2.0
"""From what was asked of a run to its end.

config = RunConfig(run="digits", cluster=Cluster.of_speeds((1.0, 0.5)))
result = run(config, find_program(Path("train.py"), [], None, verb="run"))
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.control.shares.pulling import check_any_allocation
from gangline.control.sync.leasing import check_lease_scheme
from gangline.coordinator.detectors import load_detector
from gangline.emulation.scaling import scale_speeds
from gangline.engines.job import Job, count_cores
from gangline.engines.running import run_job
from gangline.launch.certificates import find_tls_files, own_files
from gangline.launch.compression import compressed
from gangline.launch.devices import find_gpus, placed
from gangline.launch.emulation import enclosed
from gangline.launch.folder import make_run_dir
from gangline.launch.hosts import hosted
from gangline.launch.structure import structure_of_plan
from gangline.planning.known import known_profile
from gangline.spec.config import AUTO, FLAT, RunConfig
from gangline.spec.errors import UsageError
from gangline.spec.exchange.structure import Structure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.engines.result import JobResult
    from gangline.engines.supervision import Watcher
    from gangline.files.tls import TlsFiles
    from gangline.launch.program import Program


def run(
    config: RunConfig,
    program: Program,
    *,
    run_dir: Path | None = None,
    watcher: Watcher | None = None,
) -> JobResult:
    """Runs a program to its end. No process of it is left when this returns or raises."""
    resolved = resolve(config)
    if resolved.hosts.file is not None:
        with hosted(resolved, program, run_dir=run_dir) as found:
            return run_job(found.job, watcher=watcher, make_engine=found.make_engine)
    with prepared(resolved, program, run_dir=run_dir) as job:
        return run_job(job, watcher=watcher)


def resolve(config: RunConfig, *, is_described: bool | None = None) -> RunConfig:
    """The same, checked, with devices, and the structure that a plan's file or `compress` names.

    `is_described` says whether somebody has described the nodes; None: if they are not the default.
    """
    if is_described is None:
        is_described = config.cluster != RunConfig().cluster
    config = placed(config, is_described=is_described, gpus=find_gpus())
    config.check()
    with _naming("manager.detector"):
        load_detector(config.manager.detector)
    if config.batch.allocation is not None:
        with _naming("batch.allocation"):
            check_any_allocation(config.batch.allocation)
    with _naming("exchange.lease_scheme"):
        check_lease_scheme(config.exchange.lease_scheme)
    _own_files(config)
    exchange = config.exchange
    given = exchange.structure
    if isinstance(given, str) and given not in (AUTO, FLAT):
        names = [node.name for node in config.cluster.worker_nodes]
        given = structure_of_plan(given, names, flag="exchange.structure")
    tree = given if isinstance(given, Structure) else None
    tree = compressed(tree, exchange.compress, workers=config.num_workers)
    found = msgspec.structs.replace(exchange, structure=tree or given, compress=())
    return msgspec.structs.replace(config, exchange=found)


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
        own=_own_files(config),
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


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Says which field a value is of that is refused."""
    try:
        yield
    except UsageError as error:
        raise type(error)(f"{field}: {error}") from error


def _own_files(config: RunConfig) -> TlsFiles | None:
    """The user's own certificate, if the configuration names one."""
    wire = config.wire
    if wire.certificate is None or wire.key is None or wire.authority is None:
        return None  # it names all three, or none
    return own_files(Path(wire.certificate), Path(wire.key), Path(wire.authority))
