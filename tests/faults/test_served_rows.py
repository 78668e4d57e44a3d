# SPDX-License-Identifier: Apache-2.0
"""Tables with sparse gradients: by teams, by workers that update themselves, and with losses."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from elastic_bodies import Setup
from elastic_jobs import kill, run_with
from elastic_served import MIXED, TABLES
from test_served import assert_sound
from test_served_exact import Replay, assert_replayed
from test_teams import PAIRS

from cases import quick_of
from gangline.spec.event import ServersUsed, UpdateApplied
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

SETUP = Setup(samples=130, batch=12, epochs=2, allocation="balanced")
WORKER = "asp(update=worker)"


def _updates(outcome: Outcome) -> list[UpdateApplied]:
    """As they count in the end: after losses a number is given again."""
    newest = {one.number: one for one in outcome.of_kind(UpdateApplied)}
    return [newest[number] for number in sorted(newest)]


def _reads(folder: Path) -> dict[Any, Any]:
    lines = (folder / "reads.txt").read_text().splitlines()
    return dict(ast.literal_eval(line) for line in lines)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("mode", "loop"),
    quick_of(
        [
            (mode, loop)
            for mode in ("asp", "bsp", "ssp(1, servers=2)")
            for loop in (*TABLES, *MIXED)
            if mode != "ssp(1, servers=2)" or loop in MIXED
        ],
        quick=[("ssp(1, servers=2)", "mixed_sgd")],
    ),
)
def test_pairs_compute_what_one_process_makes_of_the_same_updates(
    tmp_path: Path, mode: str, loop: str
) -> None:
    sync = parse_sync(mode)
    assert sync.service is not None
    outcome = run_with(
        tmp_path, replace(SETUP, loop=loop), [], workers=4, structure=PAIRS, sync=sync
    )
    assert_sound(outcome, SETUP)
    replay = Replay(outcome, loop, sync.service)
    assert_replayed(replay, _updates(outcome), outcome.results[0]["state"])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("mode", "loop", "workers"),
    quick_of(
        [
            (mode, loop, workers)
            for mode in (WORKER, "bsp(update=worker)", "asp(update=worker, servers=2)")
            for loop in ("rows_sgd", "mixed_sgd")
            for workers in (3, 4)
            if loop == "mixed_sgd" or "servers" not in mode
        ],
        quick=[(WORKER, "mixed_sgd", 3)],
    ),
)
def test_workers_that_update_by_themselves_push_the_rows_that_they_have_changed(
    tmp_path: Path, mode: str, loop: str, workers: int
) -> None:
    """Plain SGD: what a step changes is what a server would have made of its gradient."""
    sync = parse_sync(mode)
    assert sync.service is not None
    structure = PAIRS if workers == 4 else None
    outcome = run_with(
        tmp_path, replace(SETUP, loop=loop), [], workers=workers, structure=structure, sync=sync
    )
    assert_sound(outcome, SETUP)
    replay = Replay(outcome, loop, sync.service)
    assert_replayed(replay, _updates(outcome), outcome.results[0]["state"])


@pytest.mark.slow
@pytest.mark.parametrize("loop", [*TABLES, *MIXED])
@pytest.mark.parametrize("workers", [3, 4])
@pytest.mark.parametrize(
    "mode", ["asp(update=worker, push=4, fetch=2)", "backup(1, update=worker)"]
)
def test_whoever_updates_now_and_then_ends_as_all_others_do(
    tmp_path: Path, mode: str, loop: str, workers: int
) -> None:
    structure = PAIRS if workers == 4 else None
    setup = replace(SETUP, loop=loop, slow_worker=1)
    outcome = run_with(
        tmp_path, setup, [], workers=workers, structure=structure, sync=parse_sync(mode)
    )
    assert_sound(outcome, setup)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("mode", "worker", "where"),
    quick_of(
        [
            (mode, worker, where)
            for mode in ("asp", "bsp", "asp(servers=2)", WORKER)
            for worker in (0, 2)
            for where in ("forward", "exchange", "update")
        ],
        quick=[("asp", 0, "update")],
    ),
)
def test_rows_count_once_though_their_server_is_killed(
    tmp_path: Path, mode: str, worker: int, where: str
) -> None:
    """Worker 0 holds the table; its copy goes on with what was pushed, and knows what has changed."""
    setup = replace(SETUP, think_s=0.01, loop="mixed_sgd", folder=str(tmp_path))
    sync = parse_sync(mode)
    assert sync.service is not None
    outcome = run_with(tmp_path, setup, [kill(worker, 4, where)], sync=sync)
    assert_sound(outcome, setup, killed=(worker,))
    replay = Replay(outcome, "mixed_sgd", sync.service, _reads(tmp_path))
    survivor = min(outcome.results)
    state = {k: v for k, v in outcome.results[survivor]["state"].items() if k.startswith("0.")}
    assert_replayed(replay, _updates(outcome), state)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "exchange", "update"])
@pytest.mark.parametrize(
    "mode", ["asp(replicas=0)", "bsp(replicas=0, servers=2)", "ssp(1, replicas=0)"]
)
def test_a_table_that_is_lost_is_rebuilt_from_the_rows_that_were_pulled(
    tmp_path: Path, mode: str, where: str
) -> None:
    setup = replace(SETUP, think_s=0.01, loop="mixed_sgd")
    outcome = run_with(tmp_path, setup, [kill(0, 4, where)], sync=parse_sync(mode))
    assert_sound(outcome, setup, killed=(0,))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "exchange", "update", "between"])
@pytest.mark.parametrize("worker", [0, 1, 2])
@pytest.mark.parametrize("mode", ["asp", "bsp", "asp(update=worker, push=2)", "asp(replicas=0)"])
def test_a_pair_with_a_table_goes_on_without_a_member(
    tmp_path: Path, mode: str, worker: int, where: str
) -> None:
    setup = replace(SETUP, think_s=0.01, loop="mixed_sgd")
    outcome = run_with(
        tmp_path,
        setup,
        [kill(worker, 4, where)],
        workers=4,
        structure=PAIRS,
        sync=parse_sync(mode),
    )
    assert_sound(outcome, setup, killed=(worker,))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("mode", "loop"),
    quick_of(
        [
            (mode, loop)
            for mode in ("bsp(rows=ondemand)", "bsp(servers=2, rows=ondemand)")
            for loop in ("rows_sgd", "rows_adam", "rows_adagrad", "mixed_sgd", "mixed_adagrad")
            if "servers" not in mode or loop.startswith("mixed")
        ],
        quick=[("bsp(rows=ondemand)", "mixed_sgd")],
    ),
)
def test_rows_that_come_on_demand_are_those_of_the_last_round(
    tmp_path: Path, mode: str, loop: str
) -> None:
    sync = parse_sync(mode)
    assert sync.service is not None
    outcome = run_with(tmp_path, replace(SETUP, loop=loop), [], sync=sync)
    assert_sound(outcome, SETUP)
    replay = Replay(outcome, loop, sync.service)
    assert_replayed(replay, _updates(outcome), outcome.results[0]["state"])
    assert sum(one.num_fetches for one in outcome.of_kind(ServersUsed)) > 0


@pytest.mark.parametrize(
    ("mode", "faults"),
    quick_of(
        [
            (f"{mode}rows=ondemand)", faults)
            for mode in ("asp(", "ssp(1, ", "backup(1, ", "asp(servers=2, ", "asp(replicas=0, ")
            for faults in ((), (kill(0, 4, "forward"),), (kill(0, 14, "update"),))
        ],
        quick=[("asp(replicas=0, rows=ondemand)", (kill(0, 14, "update"),))],
    ),
)
def test_all_have_the_whole_table_at_the_end_of_an_epoch(
    tmp_path: Path, mode: str, faults: Any
) -> None:
    """Worker 0 serves."""
    setup = replace(SETUP, loop="looking_sgd", think_s=0.01)
    outcome = run_with(tmp_path, setup, faults, sync=parse_sync(mode))
    assert_sound(outcome, setup, killed=tuple(fault.worker for fault in faults))
    first, *others = [result["found_after"] for result in outcome.results.values()]
    for epoch in range(setup.epochs):
        for other in others:
            assert torch.equal(first["table", epoch], other["table", epoch])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "workers", "message"),
    [
        ("aside_sgd", 2, "rows of table.weight were read in another way than by calling its layer"),
        ("mixed_sgd", 4, "members of a team must read the same rows"),
    ],
)
def test_what_cannot_be_read_on_demand_is_refused(
    tmp_path: Path, loop: str, workers: int, message: str
) -> None:
    structure = PAIRS if workers == 4 else None
    outcome = run_with(
        tmp_path,
        replace(SETUP, loop=loop),
        [],
        workers=workers,
        structure=structure,
        sync=parse_sync("asp(rows=ondemand)"),
    )
    assert 0 not in outcome.exit_codes
    assert message in "".join(outcome.outputs.values())
