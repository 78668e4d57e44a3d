# SPDX-License-Identifier: Apache-2.0
"""The parts of the launcher that need no process: environments, logs, results, blame."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import MagicMock

import msgspec
import pytest

from gangline.engines.guard import groups_left
from gangline.engines.job import Job, thread_environment
from gangline.engines.local import LocalEngine, WorkerCommand
from gangline.engines.logtail import last_lines, last_traceback
from gangline.engines.result import JobResult, WorkerResult, error_line
from gangline.engines.supervision import SilentWatcher, find_cause, supervise
from gangline.protocol.launch import Launch
from gangline.spec.cluster import Cluster
from gangline.spec.config import BatchConfig, ExchangeConfig, RunConfig, SurvivalConfig

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    f()
ValueError: bad
"""
CHAINED = f"""\
{TRACEBACK}
The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
    raise KeyError("worse")
KeyError: 'worse'
more about it
"""


def ended(worker: int, **fields: object) -> WorkerResult:
    return WorkerResult(worker=worker, **{"exit_code": 1, "signal": None, **fields})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "0.log"


# --- what workers are told ------------------------------------------------------------------------


def test_each_worker_is_told_its_place_speed_and_share(tmp_path: Path) -> None:
    job = Job(
        config=RunConfig(
            run="digits",
            cluster=Cluster.of_speeds((1.0, 0.5)),
            batch=BatchConfig(shares=(2.0, 1.0)),
            exchange=ExchangeConfig(transport="gloo"),
            survival=SurvivalConfig(non_finite="evict"),
        ),
        run_dir=tmp_path,
        script=Path("train.py"),
        arguments=("--lr", "0.1"),
    )
    first, second = job.commands({"HOME": "/home"}, cores=2)
    assert first.arguments == ("train.py", "--lr", "0.1")
    assert first.environment["HOME"] == "/home"
    assert first.environment["PYTHONUNBUFFERED"] == "1"
    assert second.log == tmp_path / "workers" / "1.log"
    assert Launch.from_environment(second.environment) == Launch(
        run="digits",
        run_dir=str(tmp_path),
        worker=1,
        workers=2,
        token_file=str(tmp_path / "token"),
        speed=0.5,
        config=msgspec.structs.replace(job.config, cluster=RunConfig().cluster),
    )


@pytest.mark.parametrize(
    ("speeds", "cores", "threads"),
    [
        ((1.0,), 8, "8"),
        ((1.0, 1.0), 8, "4"),
        ((1.0, 1.0, 1.0), 8, "2"),
        ((1.0,) * 4, 2, "1"),
        ((1.0, 0.5), 8, "1"),
    ],
)
def test_workers_share_the_cores_and_paced_ones_have_one_thread(
    speeds: tuple[float, ...], cores: int, threads: str
) -> None:
    assert thread_environment({}, speeds=speeds, cores=cores) == {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }


def test_thread_counts_of_the_user_are_left_alone() -> None:
    # MKL follows OMP where it is not told otherwise, so that one is left alone too.
    assert thread_environment({"OMP_NUM_THREADS": "3"}, speeds=(1.0,), cores=8) == {}
    assert thread_environment({"MKL_NUM_THREADS": "3"}, speeds=(1.0,), cores=8) == {
        "OMP_NUM_THREADS": "8"
    }


# --- logs -----------------------------------------------------------------------------------------


def test_a_traceback_is_found_where_torch_writes_the_rank_before_its_lines(log: Path) -> None:
    log.write_text("".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines()))
    assert last_traceback(log) == TRACEBACK.rstrip()


def test_a_worker_that_has_ended_and_was_not_reaped_is_not_stopped(tmp_path: Path) -> None:
    command = WorkerCommand(
        worker=0, arguments=("-c", ""), environment=dict(os.environ), log=tmp_path / "0.log"
    )
    with LocalEngine([command]) as engine:
        engine.start()
        os.waitid(os.P_PID, engine._running[0].pid, os.WEXITED | os.WNOWAIT)
        assert not engine.is_stopped(0)


def test_the_last_traceback_is_found_with_what_it_was_raised_from(log: Path) -> None:
    log.write_text(f"epoch 1\n{TRACEBACK}handled, going on\n{CHAINED}")
    assert last_traceback(log) == CHAINED.rstrip()


def test_a_traceback_is_cut_after_its_error_when_much_follows(log: Path) -> None:
    log.write_text(TRACEBACK + "more\n" * 50)
    assert last_traceback(log) == TRACEBACK.rstrip()


def test_a_traceback_that_was_cut_off_is_still_found(log: Path) -> None:
    log.write_text("".join(TRACEBACK.splitlines(keepends=True)[:2]))
    assert last_traceback(log) == "\n".join(TRACEBACK.splitlines()[:2])


@pytest.mark.parametrize("content", [None, "", "all is well\n"])
def test_there_is_no_traceback_when_nothing_was_raised(log: Path, content: str | None) -> None:
    if content is not None:
        log.write_text(content)
    assert last_traceback(log) is None


def test_only_the_end_of_a_large_log_is_read(log: Path) -> None:
    log.write_text("x" * 1_000_000 + "\n" + TRACEBACK)
    assert last_traceback(log) == TRACEBACK.rstrip()


def test_the_last_lines_of_a_log_are_shown(log: Path) -> None:
    log.write_text("one\ntwo\nthree\n\n")
    assert last_lines(log, 2) == "two\nthree"


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returncode", "stopped", "reason"),
    [
        (0, False, "done"),
        (3, False, "exit code 3"),
        (-9, False, "killed by SIGKILL"),
        (-11, False, "killed by SIGSEGV"),
        (-15, True, "stopped by the launcher"),
    ],
)
def test_a_worker_says_how_it_ended(returncode: int, stopped: bool, reason: str) -> None:
    result = WorkerResult.of_returncode(2, returncode, stopped=stopped, traceback=None)
    assert result.reason == reason
    assert result.has_failed == (returncode != 0 and not stopped)


@pytest.mark.parametrize(
    ("traceback", "line"),
    [(TRACEBACK, "ValueError: bad"), (CHAINED, "KeyError: 'worse'"), ("odd", "odd"), ("", "")],
)
def test_the_error_of_a_traceback_is_its_first_line_after_the_frames(
    traceback: str, line: str
) -> None:
    assert error_line(traceback) == line


def test_the_blame_is_not_put_on_a_worker_that_only_lost_the_others() -> None:
    echo = f"{TRACEBACK}gangline.spec.errors.ExchangeError: worker 1 is gone".replace(
        "ValueError: bad\n", ""
    )
    results = [ended(0, traceback=echo), ended(1, exit_code=None, signal="SIGKILL")]
    assert find_cause(results) is results[1]
    assert find_cause(results[:1]) is results[0]


def test_the_blame_is_not_put_on_a_worker_that_the_others_went_on_without() -> None:
    results = [ended(0, exit_code=None, signal="SIGKILL"), ended(1, traceback=TRACEBACK)]
    assert find_cause(results) is results[1]


def test_nobody_is_blamed_when_all_are_done_or_stopped() -> None:
    assert find_cause([ended(0, exit_code=0), ended(1, stopped=True)]) is None


@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("error", [None, TRACEBACK])
def test_an_end_that_an_operator_ordered_is_the_reason(is_ordered: bool, error: str | None) -> None:
    killed = ended(2, exit_code=None, signal="SIGKILL")
    gone = killed if error is None else ended(2, traceback=error)
    engine, beyond = MagicMock(), MagicMock(is_finished=False, is_awaited=False)
    engine.running, engine.results = (), (ended(0, exit_code=0), ended(1, exit_code=0), gone)
    beyond.is_ending, beyond.explain.return_value = is_ordered, "nobody is left who trains it"
    beyond.has_left = lambda worker: worker < 2
    result = supervise(engine, watcher=SilentWatcher(), beyond=beyond)
    assert result.status == "failed"
    if is_ordered and error is None:
        assert result.cause is None
        assert result.reason == (
            "the job is not trained to its end: an operator ended it; worker 0, 1 left, and "
            "nobody is left who trains it"
        )
    else:  # an error in the script is everybody's, whatever was ordered
        assert result.cause == gone


@pytest.mark.parametrize(
    ("status", "interrupted_by", "code"),
    [("done", None, 0), ("failed", None, 1), ("interrupted", 2, 130)],
)
def test_the_exit_code_of_a_job(status: str, interrupted_by: int | None, code: int) -> None:
    result = JobResult(
        status=status, reason="", wall_s=1.0, workers=(), interrupted_by=interrupted_by
    )
    assert result.exit_code == code


def test_the_guard_knows_which_groups_are_left() -> None:
    assert groups_left(["+10\n", "+11\n", "-10\n", "+12\n", "-99\n"]) == {11, 12}
