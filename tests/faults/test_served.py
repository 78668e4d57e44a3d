# SPDX-License-Identifier: Apache-2.0
"""Parameter servers in jobs of real processes: every sample counts once, whoever dies."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from elastic_bodies import Setup
from elastic_jobs import assert_replays, kill, run_with

from cases import quick_of
from gangline.observe.timeline import build_timeline
from gangline.spec.event import UpdateApplied
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

SETUP = Setup(samples=200, batch=12, epochs=3, allocation="balanced")


def _is_shared(name: str) -> bool:
    """Whether all workers have it: the optimizer's state is the servers', and the main worker's."""
    return not name.startswith("opt")


def assert_sound(outcome: Outcome, setup: Setup, *, killed: tuple[int, ...] = ()) -> None:
    codes = [-signal.SIGKILL if w in killed else 0 for w in range(len(outcome.exit_codes))]
    assert outcome.exit_codes == codes, outcome.outputs
    first, *others = [result["state"] for result in outcome.results.values()]
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first if _is_shared(name))
    assert_replays(outcome.folder)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)


MODES = [
    "bsp",
    "asp",
    "ssp(1)",
    "asp(ahead=1)",
    "backup(1)",
    "asp(servers=2)",
    "bsp(servers=3, replicas=0)",
]


@pytest.mark.parametrize("mode", quick_of(MODES, quick=["asp(servers=2)"]))
def test_every_sample_counts_once_and_all_end_alike(tmp_path: Path, mode: str) -> None:
    outcome = run_with(tmp_path, SETUP, [], sync=parse_sync(mode))
    assert_sound(outcome, SETUP)
    assert outcome.of_kind(UpdateApplied)


def test_a_wait_for_a_turn_is_no_part_of_computing_nor_of_the_update(tmp_path: Path) -> None:
    setup = replace(SETUP, samples=96, epochs=1, slow_worker=0)
    outcome = run_with(tmp_path, setup, [], sync=parse_sync("bsp(replicas=0)"))
    assert_sound(outcome, setup)
    steps = [step for step in build_timeline(outcome.events).steps if 1 in step.records]
    assert steps
    for step in steps:
        told = step.records[1]
        assert 0 < told.turn_s <= told.exchange_s
        assert step.wait_s(1) == pytest.approx(told.turn_s)


@pytest.mark.parametrize(
    ("mode", "worker", "where"),
    quick_of(
        [
            (mode, worker, where)
            for mode in ("bsp", "asp", "ssp(2)", "backup(1)", "asp(servers=2)", "asp(replicas=0)")
            for worker in (0, 2)
            for where in ("forward", "exchange", "update")
        ],
        quick=[("asp", 0, "update"), ("asp(replicas=0)", 0, "forward")],
    ),
)
def test_every_sample_counts_once_though_a_server_or_a_worker_dies(
    tmp_path: Path, mode: str, worker: int, where: str
) -> None:
    """Worker 0 holds a shard."""
    setup = replace(SETUP, think_s=0.01)
    outcome = run_with(tmp_path, setup, [kill(worker, 4, where)], sync=parse_sync(mode))
    assert_sound(outcome, setup, killed=(worker,))
