# SPDX-License-Identifier: Apache-2.0
"""`gangline.map` on processes: killed, hung, raising; and nothing is left when the call ends."""

from __future__ import annotations

import functools
import importlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import map_functions as functions
import numpy as np
import psutil
import pytest

import gangline
from cases import quick_of
from gangline.local import child
from gangline.spec.errors import FunctionError, LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = np.arange(40.0)


def run(function, *others, **options):
    defaults = {"where": "processes", "workers": 2, "scheme": "SS", "grain": 3, "details": True}
    return gangline.map(function, ROWS, *others, **{**defaults, **options})


def children() -> set[int]:
    """The processes of this one, but for Python's own helper."""
    found = psutil.Process().children()
    return {one.pid for one in found if "resource_tracker" not in " ".join(one.cmdline())}


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def test_functions_that_can_be_imported_run_in_new_processes_on_mapped_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = run(functions.double)
    assert np.array_equal(made.value, ROWS * 2)
    assert sum(made.chunks_of) == 14
    assert list(tmp_path.iterdir()) == []


def test_lambdas_and_closures_run_in_forks() -> None:
    factor, parent = 3, os.getpid()
    made = run(lambda rows: (os.getpid() != parent) * rows * factor)
    assert np.array_equal(made.value, ROWS * 3)


@pytest.mark.slow
def test_a_partial_of_a_function_that_can_be_imported_is_sent(tmp_path: Path) -> None:
    made = run(functools.partial(functions.count_lines, folder=str(tmp_path)), layout="PERCPU")
    assert np.array_equal(made.value, ROWS)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(40))


LOSSES = list(itertools.product(["kill", "stop"], [True, False], ["CENTRALIZED", "PERCPU"]))


@pytest.mark.parametrize(
    ("fault", "is_fork", "layout"),
    quick_of(LOSSES, quick=[("kill", False, "CENTRALIZED"), ("stop", True, "PERCPU")]),
)
def test_the_chunk_of_a_lost_process_is_done_once_by_another(
    fault: str, is_fork: bool, layout: str, tmp_path: Path
) -> None:
    work = functions.end_once
    function = (lambda *given: work(*given)) if is_fork else work
    made = run(function, str(tmp_path), fault, layout=layout, patience_s=2.5)
    assert np.array_equal(made.value, ROWS * 2)
    assert len(made.lost) == 1
    said = "ended by SIGKILL" if fault == "kill" else "given up after 2.5 s"
    assert said in next(iter(made.lost.values()))
    assert "lost: worker" in repr(made)


def test_the_loop_fails_when_all_processes_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.mapreduce.dispatch.MAX_REPLACED", 0)
    with pytest.raises(LaunchError, match=r"all 2 processes are lost; .*which had rows.*code 7"):
        run(lambda rows: functions.always_end(rows))


@pytest.mark.parametrize("workers", quick_of([1, 2, 4], quick=[2]))
def test_a_chunk_that_ends_every_process_is_given_up(workers: int) -> None:
    with pytest.raises(FunctionError, match=r"rows 3 to 5 ended 3 processes.*exit code 9"):
        run(lambda rows: functions.end_at_five(rows), workers=workers)
    made = run(lambda rows: functions.end_at_five(rows), workers=workers, on_error="collect")
    assert np.array_equal(made.value, np.delete(ROWS, [3, 4, 5]) * 2)
    assert [(one.start, one.stop) for one in made.failures] == [(3, 6)]
    assert 1 <= len(made.lost) <= 3


def test_new_processes_take_the_place_of_lost_ones(tmp_path: Path) -> None:
    made = run(functions.end_once, str(tmp_path), "kill", workers=1)
    assert np.array_equal(made.value, ROWS * 2)
    assert list(made.lost) == [0]


def test_a_function_that_ends_the_program_has_failed() -> None:
    for where in ("threads", "processes"):
        with pytest.raises(FunctionError, match=r"failed for rows .*SystemExit: 3"):
            run(lambda rows: sys.exit(3), where=where)


def test_an_error_in_a_process_is_told_with_its_rows_and_its_cause() -> None:
    def fail(rows: np.ndarray) -> np.ndarray:
        raise ArithmeticError("no")

    with pytest.raises(FunctionError, match=r"fail failed for rows .* ArithmeticError: no") as told:
        run(fail)
    assert isinstance(told.value.__cause__, ArithmeticError)


def test_a_result_that_cannot_be_sent_is_told_with_its_rows() -> None:
    with pytest.raises(FunctionError, match=r"the result for rows .* cannot be sent"):
        run(lambda rows: lambda: rows)


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(UsageError, match=r"arguments to other processes.*use where='threads'"):
        run(functions.end_once, lambda: None, "kill")


def test_results_of_processes_come_in_order_and_a_reader_may_stop() -> None:
    parts = gangline.imap(
        lambda rows: rows, ROWS, where="processes", workers=2, scheme="SS", ordered=True
    )
    assert [next(parts).start for _ in range(5)] == [0, 1, 2, 3, 4]
    parts.close()


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.path.insert(0, {folder!r})
import map_functions as functions, gangline
if __name__ == "__main__":
    gangline.map({function}, range(9), {pids!r}, where="processes", workers=2)
"""


@pytest.mark.parametrize(
    ("function", "signal_number"),
    quick_of(
        [
            ("functions.sleep_long", signal.SIGINT),
            ("functions.sleep_long", signal.SIGKILL),
            ("lambda *given: functions.sleep_long(*given)", signal.SIGINT),
            ("lambda *given: functions.sleep_long(*given)", signal.SIGKILL),
        ],
        quick=[("lambda *given: functions.sleep_long(*given)", signal.SIGKILL)],
    ),
)
def test_nothing_is_left_when_the_caller_is_ended(
    function: str, signal_number: int, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "script.py"
    folder = str(Path(functions.__file__).parent)
    script.write_text(SCRIPT.format(folder=folder, pids=str(pids), function=function))
    started = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 40
        while not pids.exists() or len(pids.read_text().split()) < 2:
            assert time.monotonic() < until, "the processes do not start"
            time.sleep(0.05)
        started.send_signal(signal_number)
        assert started.wait(timeout=20) != 0
        children = [int(pid) for pid in pids.read_text().split()]
        while any(psutil.pid_exists(pid) for pid in children):
            assert time.monotonic() < until, "processes are left"
            time.sleep(0.05)
    finally:
        started.kill()
        started.wait()


STARTING = """
import os, time
from pathlib import Path
import gangline

def double(rows):
    return [row * 2 for row in rows]

if __name__ == "__main__":
    gangline.map(double, range(9), where="processes", workers=1)
else:
    Path("pid.new").write_text(str(os.getpid()))
    os.rename("pid.new", "pid")
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "signal_number", quick_of([signal.SIGTERM, signal.SIGKILL], quick=[signal.SIGKILL])
)
def test_no_file_is_left_when_the_caller_is_ended_during_the_start(
    signal_number: int, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (tmp_path / "script.py").write_text(STARTING)
    environment = {**os.environ, "TMPDIR": str(files)}
    started = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, env=environment)
    pid = tmp_path / "pid"
    try:
        until = time.monotonic() + 40
        while not pid.exists():
            assert time.monotonic() < until, "the process does not start"
            time.sleep(0.05)
        started.send_signal(signal_number)
        assert started.wait(timeout=20) == -signal_number
        assert [path.name for path in files.iterdir() if path.is_file()] == []
    finally:
        started.kill()
        started.wait()
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGKILL)


SLOW_TO_START = """
import multiprocessing, os, signal
from pathlib import Path

def double(rows):
    return rows * 2

def stop_here():
    if multiprocessing.parent_process() is None:
        return
    for number in range({count}):
        try:
            (Path(__file__).parent / f"stopped-{{number}}").touch(exist_ok=False)
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGSTOP)
        return

stop_here()
"""


def slow_to_start(folder: Path, monkeypatch: pytest.MonkeyPatch, *, count: int):
    """A function whose module stops the first processes that import it."""
    name = f"slow_to_start_{count}"
    (folder / f"{name}.py").write_text(SLOW_TO_START.format(count=count))
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(name).double


def test_who_is_ready_does_the_rows_while_another_one_hangs_as_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(slow_to_start(tmp_path, monkeypatch, count=1))
    assert np.array_equal(made.value, ROWS * 2)
    assert sorted(made.chunks_of) == [0, 14]
    assert made.lost == {}
    assert (tmp_path / "stopped-0").exists()


def test_processes_that_all_hang_as_they_start_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_START_S", 1.0)
    function = slow_to_start(tmp_path, monkeypatch, count=2)
    with pytest.raises(LaunchError, match=r"all 2 processes are lost.*given up after 1 s"):
        run(function)


@pytest.mark.parametrize(
    "function", [functions.map_inside, lambda rows: functions.map_inside(rows)]
)
def test_a_map_in_processes_inside_of_one_is_refused(function) -> None:
    with pytest.raises(
        FunctionError, match="cannot start processes of its own: use where='threads'"
    ):
        run(function)


def test_a_fork_starts_processes_whoever_was_just_starting_one() -> None:
    answers, theirs = multiprocessing.Pipe(duplex=False)
    with child._starting:
        pid = os.fork()
        if pid == 0:
            theirs.send(child._starting.acquire(blocking=False))
            os._exit(0)
    os.waitpid(pid, 0)
    assert answers.recv()
