# SPDX-License-Identifier: Apache-2.0
"""What workers do together outside of steps, and what happens where they do not do the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from bodies_together import (
    agree_to_leave,
    call_everything,
    count_ghosts,
    differ,
    download,
    fail_to_save,
    leave,
    leave_a_team,
    lose_the_last_step,
    save_together,
    write_by_torch,
)

if TYPE_CHECKING:
    from gangline.testing import WorkerPool

DIFFER = "MismatchError: the workers' loops differ: "
NO_ERROR = "no error"
ADVICE = "Agree on when to stop: `if gangline.any(flag): break`"


# --- loops that are left ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "who", "where"),
    [
        (
            "after_other_epochs",
            0,
            "worker 0 ended its script after 8 steps (epoch 2), while worker",
        ),
        ("one_returns", 0, "worker 0 ended its script after 1 step (epoch 0), while worker"),
        ("before_a_call", 2, "worker 2 ended its script after 4 steps (epoch 1), while worker"),
        ("in_a_window", 1, "worker 1 ended its script after 2 steps (epoch 0), while worker"),
    ],
)
def test_who_ends_its_script_early_is_named_and_nobody_goes_on(
    how: str, who: int, where: str, worker_pool: WorkerPool
) -> None:
    found = worker_pool.run(leave, 3, args=(how,))
    for rank, (message, is_main) in enumerate(found):
        if rank == who:
            assert message == NO_ERROR
        else:
            assert message.startswith(DIFFER + where)
            assert ADVICE in message
        assert is_main == (rank == 0), "nobody else becomes the main worker"


@pytest.mark.parametrize(
    ("how", "where"),
    [
        (
            "one_inside_an_epoch",
            ["drifted apart", "worker 1 is in backward() after 2 steps (epoch 1)", "epoch 0)"],
        ),
        (
            "one_at_the_end_of_an_epoch",
            ["loops differ", "the end of an epoch after 4 steps (epoch 0)", "backward() after 4"],
        ),
    ],
)
def test_who_leaves_an_epoch_early_is_named(
    how: str, where: list[str], worker_pool: WorkerPool
) -> None:
    for message, is_main in worker_pool.run(leave, 3, args=(how,)):
        assert message.startswith("MismatchError: ")
        assert all(part in message for part in where), message
        assert is_main in (True, False)


def test_an_end_right_after_a_failed_step_is_an_error(worker_pool: WorkerPool) -> None:
    first, *others = worker_pool.run(lose_the_last_step, 3)
    assert first is None
    for message in others:
        assert message.startswith(DIFFER + "worker 0 ended its script after 2 steps (epoch 0)")


@pytest.mark.parametrize("how", ["any", "all", "epochs"])
def test_all_can_leave_together_in_the_middle_of_an_epoch(
    how: str, worker_pool: WorkerPool
) -> None:
    found = worker_pool.run(agree_to_leave, 3, args=(how,))
    parameters, steps, _ = found[0]
    assert steps == 7
    assert [one[0] for one in found] == [parameters] * 3
    assert [one[2] for one in found] == [True, False, False]


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("after_other_epochs", "worker 0 ended its script after "),
        ("inside_an_epoch", "worker 0 ended its script after 1 step (epoch 0), while worker"),
    ],
)
def test_a_group_that_ends_early_is_named(how: str, where: str, worker_pool: WorkerPool) -> None:
    first, *others = worker_pool.run(leave_a_team, 2, args=(how,))
    assert first == NO_ERROR
    for message in others:
        assert message.startswith(DIFFER + where), message


@pytest.mark.parametrize(
    ("how", "calls"),
    [
        ("evaluate_on_one", ["gangline.evaluate(9 samples)", "has begun epoch 1"]),
        ("other_calls", ["gangline.sum(a number)", "gangline.barrier()"]),
    ],
)
def test_groups_that_do_not_make_the_same_calls_are_named(
    how: str, calls: list[str], worker_pool: WorkerPool
) -> None:
    for message in worker_pool.run(leave_a_team, 2, args=(how,)):
        assert message.startswith(DIFFER)
        assert all(call in message for call in calls), message


# --- calls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "calls"),
    [
        (
            "evaluate_on_one",
            ["worker 0 is in gangline.evaluate(9 samples)", "workers 1, 2 are in backward()"],
        ),
        (
            "other_calls",
            ["worker 0, 2: gangline.sum(a number)", "worker 1: gangline.barrier()"],
        ),
        (
            "other_shapes",
            [f"worker {rank}: gangline.sum([{20 + rank}])" for rank in range(3)],
        ),
        (
            "call_against_end_of_epoch",
            ["worker 0: gangline.any()", "worker 1, 2: the end of an epoch"],
        ),
    ],
)
def test_calls_that_differ_are_named_on_all_workers(
    how: str, calls: list[str], worker_pool: WorkerPool
) -> None:
    for message in worker_pool.run(differ, 3, args=(how,), deadline_s=20):
        assert message.startswith("MismatchError: ")
        assert all(call in message for call in calls), message


def test_an_evaluation_that_one_worker_makes_alone_is_no_part_of_the_data(
    worker_pool: WorkerPool,
) -> None:
    first, *others = worker_pool.run(differ, 3, args=("evaluate_on_one_at_the_end",))
    assert first.startswith(DIFFER + "worker ")
    assert "worker 0 is in gangline.evaluate(9 samples)" in first
    assert others == [NO_ERROR] * 2


@pytest.mark.parametrize("where", ["before prepare", "in an epoch", "after it", "apart"])
def test_calls_bring_the_same_to_all_workers(where: str, worker_pool: WorkerPool) -> None:
    for found in worker_pool.run(call_everything, 3, args=(where,)):
        assert found == {
            "whole": 3,
            "float": 2.0,
            "tensor": [3, 3],
            "long": [6.0 * number for number in range(40)],
            "counted": [3, 1],
            "any": (True, False),
            "all": (False, True),
            "numbers": [0, 0.5, 1.0],
            "rows": [
                (torch.bfloat16, []),
                (torch.bfloat16, [[1.0, 1.0]]),
                (torch.bfloat16, [[2.0, 2.0]] * 2),
            ],
            "metrics": [
                {"seen": rank, "hits": [torch.tensor(rank == 1)], "name": "accuracy"}
                for rank in range(3)
            ],
        }
        assert isinstance(found["whole"], int)
        assert isinstance(found["numbers"][0], int)


def test_ghosts_can_be_left_out_of_what_a_loop_adds_up(worker_pool: WorkerPool) -> None:
    found = worker_pool.run(count_ghosts, 3)  # the last batch has 2 samples for 3 workers
    assert {one[:2] for one in found} == {(21, 20)}
    assert [one[2] for one in found].count([3]) == 1


# --- one worker for all -------------------------------------------------------------------------------


def test_one_worker_saves_and_all_find_the_whole_file(
    tmp_path: Path, worker_pool: WorkerPool
) -> None:
    assert worker_pool.run(save_together, 3, args=(str(tmp_path),)) == [["model.pt"]] * 3


def test_a_file_that_cannot_be_written_is_an_error_on_all_workers(
    tmp_path: Path, worker_pool: WorkerPool
) -> None:
    first, *others = worker_pool.run(fail_to_save, 3, args=(str(tmp_path),))
    assert first.startswith("UsageError: gangline.save cannot write ")
    assert "there is no folder " in first
    for message in others:
        assert message.startswith(
            "MainWorkerError: gangline.save('model.pt'): the main worker failed, and the others with "
            "it: UsageError: gangline.save cannot write "
        )


@pytest.mark.parametrize("how", ["before prepare", "after it", "apart"])
def test_the_main_worker_goes_first(how: str, tmp_path: Path, worker_pool: WorkerPool) -> None:
    assert worker_pool.run(download, 3, args=(str(tmp_path), how)) == [NO_ERROR] * 3


def test_what_fails_on_the_main_worker_is_named_on_the_others(
    tmp_path: Path, worker_pool: WorkerPool
) -> None:
    first, *others = worker_pool.run(download, 3, args=(str(tmp_path), "failing"))
    assert first == "OSError: no route to host"
    assert {*others} == {
        "MainWorkerError: gangline.main_first(): the main worker failed, and the others with it: "
        "OSError: no route to host"
    }


def test_calls_inside_of_the_main_workers_turn_are_refused(
    tmp_path: Path, worker_pool: WorkerPool
) -> None:
    first, *others = worker_pool.run(download, 3, args=(str(tmp_path), "calling"))
    assert first.startswith(
        "UsageError: gangline.barrier() was called inside of gangline.main_first()"
    )
    assert all("UsageError: gangline.barrier() was called" in message for message in others)


def test_workers_that_write_one_file_are_warned(tmp_path: Path, worker_pool: WorkerPool) -> None:
    found = worker_pool.run(write_by_torch, 3, args=(str(tmp_path), "all one"))
    for warnings in found:
        (warning,) = warnings
        assert warning.startswith(("workers 0, 1", "workers 0, 2", "workers 1, 2"))
        assert f" write one file by torch.save, {tmp_path}/one.pt: " in warning
        assert "gangline.save(obj, path)" in warning


@pytest.mark.parametrize("how", ["each its own", "main"])
def test_nobody_is_warned_who_writes_a_file_alone(
    how: str, tmp_path: Path, worker_pool: WorkerPool
) -> None:
    assert worker_pool.run(write_by_torch, 3, args=(str(tmp_path), how)) == [[]] * 3
