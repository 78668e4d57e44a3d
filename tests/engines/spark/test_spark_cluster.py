# SPDX-License-Identifier: Apache-2.0
"""`gangline.spark.fit` on a standalone master with two workers, through losses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from spark_clusters import DRIVER_S, START_S, drive, processes_with, standalone, start_driver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(2 * DRIVER_S)
SPECULATIVE = (
    "spark.speculation=true",
    "spark.speculation.interval=200ms",
    "spark.speculation.task.duration.threshold=2s",
    "spark.eventLog.compress=false",
    "spark.cores.max=3",
)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("cluster")) as url:
        yield url


def test_rows_are_used_once_though_an_executor_is_killed(master: str, tmp_path: Path) -> None:
    answer = drive("lossy", tmp_path, master)
    assert len(answer["killed"]) == 1
    assert answer["status"] == "done"
    assert answer["problems"] == []
    assert len(answer["uses"]) == 1  # all rows equally often, and the log says that this is right
    assert len(answer["workers"]) == 3  # Spark has started the lost task again, and it has joined


def test_speculative_copies_train_nothing_twice(master: str, tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    history = ("spark.eventLog.enabled=true", f"spark.eventLog.dir=file://{tmp_path}/history")
    answer = drive("lossy", tmp_path, master, *SPECULATIVE, *history)
    told = "".join(one.read_text() for one in (tmp_path / "history").rglob("events*"))
    assert '"Speculative":true' in told  # Spark did start copies
    assert answer["status"] == "done"
    assert answer["problems"] == []
    assert len(answer["uses"]) == 1  # all rows equally often, and the log says that this is right


def test_in_the_strict_form_all_begin_again(master: str, tmp_path: Path) -> None:
    answer = drive("strict", tmp_path, master)
    assert answer["status"] == "done"
    assert answer["run_dir"] == "strict-2"
    assert answer["problems"] == []
    assert answer["uses"] == [1]


def test_nothing_is_left_when_the_driver_is_killed(master: str, tmp_path: Path) -> None:
    driver = start_driver("endless", tmp_path, master)
    try:
        logs = tmp_path / "endless" / "events"
        deadline = time.monotonic() + DRIVER_S
        while not any(b'"step_done"' in log.read_bytes() for log in logs.glob("worker-*.jsonl")):
            assert driver.process.poll() is None, driver.output()[-6000:]
            assert time.monotonic() < deadline, driver.output()[-6000:]
            time.sleep(0.2)
        application = "app-"
        left = {one.pid: one for one in processes_with(str(tmp_path))}
        assert len(left) > 2  # the driver, its Java, the coordinator, at least
        executors = [one for one in processes_with(application) if one.is_running()]
        assert executors
        driver.process.kill()
        driver.process.wait()
        watched = [*left.values(), *executors]
        deadline = time.monotonic() + START_S
        while any(one.is_running() and one.status() != "zombie" for one in watched):
            assert time.monotonic() < deadline, [
                one.cmdline() for one in watched if one.is_running()
            ]
            time.sleep(0.2)
    finally:
        driver.end()
