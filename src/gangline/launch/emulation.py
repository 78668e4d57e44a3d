# SPDX-License-Identifier: Apache-2.0
"""What the workers of a run are put into: networks and quotas of their own."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.emulation.gates import dial_coordinator
from gangline.emulation.networks import EmulatedNetwork, by_worker
from gangline.emulation.quotas import Quotas
from gangline.profiling.cgroups import find_controller
from gangline.spec.enclosure import OPEN
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.engines.job import Job


@contextmanager
def enclosed(job: Job) -> Iterator[Job]:
    """The job with the enclosures that its cluster asks for, which are there until it has ended."""
    cluster = job.config.cluster
    with ExitStack() as stack:
        enclosures = [OPEN] * len(job.speeds)
        if cluster.has_network:
            network = EmulatedNetwork(cluster, dial=lambda: dial_coordinator(job.run_dir))
            enclosures = list(by_worker(cluster, stack.enter_context(network).enclosures))
        if job.config.emulation.quota:
            groups = stack.enter_context(_quotas(job.speeds))
            enclosures = [
                msgspec.structs.replace(enclosure, control_group=str(group))
                for enclosure, group in zip(enclosures, groups, strict=True)
            ]
        own = [node.environment for node in cluster.nodes for _ in range(node.workers)]
        enclosures = [
            msgspec.structs.replace(enclosure, variables=variables)
            for enclosure, variables in zip(enclosures, own, strict=True)
        ]
        is_enclosed = any(enclosure != OPEN for enclosure in enclosures)
        yield msgspec.structs.replace(job, enclosures=tuple(enclosures)) if is_enclosed else job


def _quotas(speeds: tuple[float, ...]) -> Quotas:
    controller = find_controller(Path("/"), "cpu")
    if controller is None:
        raise UsageError(
            "emulation.quota needs control groups, which this system does not have; leave it out, and "
            "workers pace themselves"
        )
    return Quotas(controller.group, version=controller.version, speeds=speeds)
