# SPDX-License-Identifier: Apache-2.0
"""Profiles the workers of a running job: it measures its own links, and says what its steps cost."""

from __future__ import annotations

import time
from itertools import combinations
from statistics import median, quantiles
from typing import TYPE_CHECKING

import msgspec

from gangline.eventlog import read_run
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.protocol.status import Status, SurveyedLink, SurveyStatus
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.event import RunStarted
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, PairLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_POLL_S = 0.2
_MEMBERS_S = 10.0
_LEAST_S = 1e-9
_MOST_WORKERS = 10_000
"""Numbers above this are not looked for in a profile."""


def probe_run(run_dir: Path, *, say: Callable[[str], None]) -> ClusterProfile:
    """What lies between the workers of a run, and what they compute; `say` hears how far it is."""
    contact = RunContact(run_dir, token_file=run_dir / OPERATOR_TOKEN)
    _await_members(contact, say)
    contact.ask("/api/survey", body=b"{}")
    costs: dict[int, list[float]] = {}
    while True:
        found = msgspec.json.decode(contact.ask("/api/survey"), type=SurveyStatus)
        status = msgspec.json.decode(contact.ask("/api/status"), type=Status)
        for worker in status.workers:
            if worker.samples:
                costs.setdefault(worker.worker, []).append(worker.compute_s / worker.samples)
        if found.is_over:
            break
        say(f"links: {found.num_done} of {found.num_pairs or '?'} pairs")
        time.sleep(_POLL_S)
    return _profile(run_dir, found, costs)


def _await_members(contact: RunContact, say: Callable[[str], None]) -> None:
    """A worker whose line to the coordinator is down for a moment cannot be asked."""
    deadline = time.monotonic() + _MEMBERS_S
    while time.monotonic() < deadline:
        status = msgspec.json.decode(contact.ask("/api/status"), type=Status)
        members = () if status.view is None else status.view.members
        there = {worker.worker for worker in status.workers if worker.is_connected}
        if members and set(members) <= there:
            return
        say("waiting for all members")
        time.sleep(_POLL_S)


def _profile(run_dir: Path, found: SurveyStatus, costs: dict[int, list[float]]) -> ClusterProfile:
    workers = sorted(worker for host in found.hosts for worker in host)
    missing = [worker for worker in workers if worker not in costs]
    if missing:
        raise LaunchError(
            f"worker {missing[0]} has not made a step yet, so what it computes is not known; ask "
            "again when the job trains"
        )
    if not found.links:
        raise LaunchError(
            f"no link could be measured: {'; '.join(found.errors[:3]) or 'nobody answered'}"
        )
    names = name_workers(run_dir, workers)
    place_of = {worker: f"host {i}" for i, host in enumerate(found.hosts) for worker in host}
    nodes = tuple(
        NodeProfile(
            name=names[worker],
            per_sample_s=max(_LEAST_S, median(costs[worker])),
            place=place_of[worker],
        )
        for worker in workers
    )
    return ClusterProfile(
        nodes=nodes, pairs=_pairs(found, names), model=f"the job in {run_dir.name}"
    )


def _pairs(found: SurveyStatus, names: dict[int, str]) -> tuple[PairLink, ...]:
    measured = {frozenset((one.source, one.target)): one for one in found.links}
    pairs = [_pair(one, names[one.source], names[one.target]) for one in found.links]
    for host in found.hosts:
        # What two workers of a host measured holds for all of its pairs.
        like = next((one for pair, one in measured.items() if pair <= set(host)), None)
        if like is not None:
            pairs += [
                _pair(like, names[first], names[second])
                for first, second in combinations(host, 2)
                if frozenset((first, second)) not in measured
            ]
    return tuple(pairs)


def _pair(found: SurveyedLink, source: str, target: str) -> PairLink:
    return PairLink(
        source=source,
        target=target,
        there=_link(found, found.there_s),
        back=_link(found, found.back_s),
    )


def _link(found: SurveyedLink, times_s: list[float]) -> Link:
    low, middle, high = quantiles(times_s, n=4)
    moving_s = max(middle - 2 * found.latency_s, _LEAST_S)
    return Link(
        latency_s=found.latency_s,
        bytes_per_s=found.num_bytes / moving_s,
        spread=(high - low) / middle,
    )


def name_workers(run_dir: Path, workers: Iterable[int]) -> dict[int, str]:
    """Each worker's name: that of its node, numbered where it has several; else its own number."""
    started = [
        event
        for event in read_run(run_dir, notes=[])
        if isinstance(event, RunStarted) and not event.is_joining
    ]
    nodes = started[-1].nodes if started else []
    names: dict[int, str] = {}
    for worker in workers:
        node = nodes[worker] if worker < len(nodes) else f"worker {worker}"
        is_shared = nodes.count(node) > 1
        names[worker] = f"{node}.{worker - nodes.index(node)}" if is_shared else node
    return names


def in_worker_order(profile: ClusterProfile, run_dir: Path) -> ClusterProfile:
    """The profile with its nodes at the places of their workers' numbers, as a coordinator wants it.

    Where a worker is missing from the profile there is a node of which nothing is known.
    """
    names = name_workers(run_dir, range(_MOST_WORKERS))
    number = {name: worker for worker, name in names.items()}
    unknown = [node.name for node in profile.nodes if node.name not in number]
    if unknown:
        raise UsageError(
            f"the profile names {unknown[0]!r}, which is no worker of the run in {run_dir}; make it "
            "with `gangline probe RUN_DIR`"
        )
    known = {number[node.name]: node for node in profile.nodes}
    nodes = tuple(
        known.get(worker) or NodeProfile(name=names[worker], per_sample_s=1.0)
        for worker in range(max(known) + 1)
    )
    return msgspec.structs.replace(profile, nodes=nodes)
