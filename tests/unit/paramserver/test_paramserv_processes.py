# SPDX-License-Identifier: Apache-2.0
"""Workers that are processes: killed, stopped, raising; and nothing is left when the call ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import paramserv_functions as functions
import psutil
import pytest

import gangline
from cases import quick_of
from gangline.spec.errors import FunctionError, LaunchError, UsageError


def run_counting(update, *, rows: int = 40, **options):
    model, features, labels = functions.numbered(rows)
    defaults = {"epochs": 2, "workers": 2, "batch_size": 4, "reduction": "sum"}
    return gangline.paramserv(
        model,
        features,
        labels,
        update,
        functions.add,
        where="processes",
        **{**defaults, **options},
    )


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "spawn_main" in " ".join(one.cmdline())]


@pytest.mark.parametrize("fault", ["kill", "stop"])
@pytest.mark.parametrize("mode", quick_of(["bsp", "asp", "ssp(1)"], quick=["bsp"]))
def test_the_rows_of_a_lost_process_are_used_once_by_others(
    mode: str, fault: str, tmp_path: Path
) -> None:
    given = {"mark": str(tmp_path / "mark"), "fault": fault}
    trained = run_counting(functions.count_or_die, mode=mode, hyperparameters=given, patience_s=2.5)
    assert trained.model[0].tolist() == [2.0] * 40
    assert trained.samples_of == {0: 0, 1: 80}
    said = "ended by SIGKILL" if fault == "kill" else "given up after 2.5 s"
    assert said in trained.lost[0]
    assert "lost: worker 0" in repr(trained)
    assert children() == []


def test_processes_train_as_threads_do() -> None:
    features, labels = functions.regression()
    one, other = (
        gangline.paramserv(
            functions.start(),
            features,
            labels,
            functions.update,
            functions.aggregate,
            epochs=3,
            workers=2,
            batch_size=8,
            hyperparameters={"lr": 0.1},
            where=where,
        )
        for where in ("threads", "processes")
    )
    assert all(np.array_equal(a, b) for a, b in zip(one.model, other.model, strict=True))


def test_an_error_in_a_process_is_told_with_its_cause(tmp_path: Path) -> None:
    given = {"mark": str(tmp_path / "mark"), "fault": "raise"}
    with pytest.raises(
        FunctionError, match=r"update failed for worker 0 \(epoch 1, batch 1"
    ) as told:
        run_counting(functions.count_or_die, hyperparameters=given)
    assert isinstance(told.value.__cause__, ArithmeticError)
    assert children() == []


def test_the_run_ends_when_all_processes_are_lost() -> None:
    with pytest.raises(LaunchError, match=r"all 2 workers are lost; .* exit code 7"):
        run_counting(functions.always_die)


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(UsageError, match="define functions at the top level"):
        run_counting(lambda *_: None)


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.path.insert(0, {folder!r})
import paramserv_functions as functions, gangline
if __name__ == "__main__":
    model, features, labels = functions.numbered(8)
    gangline.paramserv(model, features, labels, functions.sleep_long, functions.add, epochs=1,
                       workers=2, hyperparameters={{"pids": {pids!r}}}, where={where!r})
"""


ENDINGS = [
    ("processes", signal.SIGINT),
    ("processes", signal.SIGKILL),
    ("threads", signal.SIGINT),
]


@pytest.mark.parametrize(("where", "signal_number"), quick_of(ENDINGS, quick=ENDINGS[:2]))
def test_nothing_is_left_when_the_caller_is_ended(
    where: str, signal_number: int, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    script = tmp_path / "script.py"
    folder = str(Path(functions.__file__).parent)
    script.write_text(SCRIPT.format(folder=folder, pids=str(pids), where=where))
    command = [sys.executable, script]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: len(os.listdir(pids)) == (2 if where == "processes" else 1))
            process.send_signal(signal_number)
            _, told = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == -signal_number
    assert ("KeyboardInterrupt" in told) == (signal_number == signal.SIGINT)
    wait_until(lambda: not any(psutil.pid_exists(int(pid)) for pid in os.listdir(pids)))


def wait_until(condition) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


def test_functions_that_a_process_cannot_import_are_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "of_here_alone", types.ModuleType("of_here_alone"))

    def update(model, hyperparameters, features, labels): ...

    update.__module__, update.__qualname__ = "of_here_alone", "update"
    monkeypatch.setattr(sys.modules["of_here_alone"], "update", update, raising=False)
    with pytest.raises(LaunchError, match=r"before it was ready, .* functions must be importable"):
        run_counting(update)
