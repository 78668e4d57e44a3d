# SPDX-License-Identifier: Apache-2.0
"""A job whose workers are in Ray's actors: those that come found it, others join later."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.engines.hosts.seat import Seat
from gangline.engines.ray.cluster import own_address
from gangline.engines.ray.engine import RayEngine
from gangline.engines.ray.slots import MAX_SLOTS, Slots
from gangline.launch.engines.kind import PreparedRun
from gangline.launch.engines.remote import brief_of, chosen, job_of, problems
from gangline.launch.folder import make_run_dir
from gangline.spec.errors import LaunchError
from gangline.spec.machines.hosts import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gangline.engines.ray.services.desk import Service
    from gangline.launch.engines.kind import Tell
    from gangline.launch.program import Program
    from gangline.protocol.agents import File
    from gangline.spec.config import RunConfig

START_S = 60.0
"""How long the fewest workers may take to come, where nobody says otherwise."""
SETTLE_S = 20.0
"""How long those that have come wait for others that there is room for."""
_POLL_S = 0.02
_TELL_S = 10.0


@contextmanager
def prepared_in_ray(
    config: RunConfig,
    program: Program,
    *,
    run_dir: Path | None,
    tell: Tell,
    files: Callable[[], Iterator[File]],
    services: Mapping[str, Service],
    runtime_env: Any = None,
    spare_cpus: int = 0,
) -> Iterator[PreparedRun]:
    """The job of the actors that come; all are ended with the context."""
    asked = config.hosts
    slots = Slots(
        config.ray,
        least=asked.min_workers,
        most=asked.max_workers,
        services=services,
        runtime_env=runtime_env,
        spare_cpus=spare_cpus,
    )
    name, folder = make_run_dir(
        Path(program.name),
        name=config.run or None,
        run_dir=run_dir,
        resume=config.checkpoint.resume,
    )
    named = msgspec.structs.replace(config, run=name)
    folder = folder.resolve()
    address = own_address()
    count = asked.max_workers or MAX_SLOTS
    seats = tuple(_seat(number, named, program, files, slots, address) for number in range(count))
    try:
        slots.open()
        _check_room(slots, named)
        founders = _gather(seats, slots, named, tell)
        job = job_of(named, program, folder, seats, founders)
        yield PreparedRun(job, lambda watcher: RayEngine(job, seats, slots, watcher=watcher))
    finally:
        for seat in seats:
            seat.close()
        slots.close()


def _seat(
    number: int,
    config: RunConfig,
    program: Program,
    files: Callable[[], Iterator[File]],
    slots: Slots,
    address: str,
) -> Seat:
    host = Host(name=f"ray-{number}", coordinator=address, workers=1)
    return Seat(
        host,
        brief=brief_of(host, program, run=config.run, brings=config.hosts.bring),
        files=files,
        listen=config.hosts.listen_at[0],
        make_line=lambda: slots.line(number),
    )


def _check_room(slots: Slots, config: RunConfig) -> None:
    """Refuses what no node has room for, unless somebody waits for nodes to come."""
    least = config.hosts.min_workers
    left = " beside the tasks that compute the data sets" if slots.spare_cpus else ""
    if slots.room.now < least and not config.hosts.wait_s:
        raise LaunchError(
            f"the Ray cluster has {slots.room}{left}, and it takes {least} (--min-workers) with "
            f"{_listed(config.ray.bundle)} each: add nodes (`ray start --address …`), ask for less "
            "(--min-workers, --ray-cpus, --ray-gpus), or wait for an autoscaler (--wait SECONDS)"
        )


def _gather(seats: Sequence[Seat], slots: Slots, config: RunConfig, tell: Tell) -> dict[str, int]:
    """Which of the places begin. Raises LaunchError where too few come in time."""
    asked = config.hosts
    most = asked.max_workers or sys.maxsize
    begun_s = told_s = time.monotonic()
    enough_s: float | None = None
    told: set[str] = set()
    while True:
        slots.look()
        for seat in seats[: slots.target]:
            seat.look()
            if seat.problem is not None and seat.problem not in told:
                told.add(seat.problem)
                tell(f"{seat.host.name} does not take part yet: {seat.problem}")
        counts, now = chosen(seats, most), time.monotonic()
        come = sum(counts.values())
        enough_s = enough_s if come < asked.min_workers else enough_s or now
        if come >= min(slots.target, most):
            return counts
        if enough_s is not None and now - enough_s > max(SETTLE_S, asked.wait_s):
            return counts
        if enough_s is None and now - begun_s > max(START_S, asked.wait_s):
            raise LaunchError(_too_few(come, seats, slots, config))
        if now - told_s > _TELL_S:
            told_s = now
            tell(f"waiting for Ray: {come} of {slots.target} workers have a place")
        time.sleep(_POLL_S)


def _too_few(come: int, seats: Sequence[Seat], slots: Slots, config: RunConfig) -> str:
    why = problems(seats) or slots.problem or "others use what there is: `ray status` says who"
    return (
        f"{come} workers can begin, and it takes {config.hosts.min_workers} (--min-workers, --wait): "
        f"the Ray cluster has {slots.room} with {_listed(config.ray.bundle)} each; {why}"
    )


def _listed(bundle: Mapping[str, float]) -> str:
    return ", ".join(f"{value:g} {name}" for name, value in bundle.items())
