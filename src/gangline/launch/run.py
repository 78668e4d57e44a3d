# SPDX-License-Identifier: Apache-2.0
"""From what was asked of a run to its end.

config = RunConfig(run="digits", cluster=Cluster.of_speeds((1.0, 0.5)))
result = run(config, find_program(Path("train.py"), [], None, verb="run"))
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from gangline.control.shares.pulling import check_any_allocation
from gangline.control.sync.leasing import check_lease_scheme
from gangline.coordinator.detectors import load_detector
from gangline.engines.running import run_job
from gangline.launch.certificates import own_files_of
from gangline.launch.compression import compressed
from gangline.launch.devices import find_gpus, placed
from gangline.launch.engines.kind import silent
from gangline.launch.engines.registry import find_engine
from gangline.launch.structure import structure_of_plan
from gangline.spec.config import AUTO, FLAT, RunConfig
from gangline.spec.errors import UsageError
from gangline.spec.exchange.structure import Structure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangline.engines.result import JobResult
    from gangline.engines.supervision import Watcher
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
    engine = find_engine(resolved.on)
    engine.check(resolved)
    said = engine.submit(resolved, program, run_dir=run_dir, tell=silent)
    if said is not None:
        raise UsageError(f"this run has no result yet: {said}; run it by `gangline run --on`")
    with engine.prepared(resolved, program, run_dir=run_dir, tell=silent) as found:
        return run_job(found.job, watcher=watcher, make_engine=found.make_engine)


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
    own_files_of(config)
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
def _naming(field: str) -> Iterator[None]:
    """Says which field a value is of that is refused."""
    try:
        yield
    except UsageError as error:
        raise type(error)(f"{field}: {error}") from error
