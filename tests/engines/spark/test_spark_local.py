# SPDX-License-Identifier: Apache-2.0
"""`gangline.spark.fit` in local mode, with real Spark."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from spark_clusters import DRIVER_S, drive, environment, settings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(2 * DRIVER_S)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return drive("local", tmp_path_factory.mktemp("local"), "local[2]")


def test_each_row_is_used_once_per_epoch(answer: Any) -> None:
    counted = answer["counted"]
    assert counted["status"] == "done"
    assert counted["problems"] == []
    assert counted["uses"] == [2]
    assert counted["workers"] == [0, 1]


def test_a_model_is_trained_and_predicts_every_row(answer: Any) -> None:
    assert answer["weights"] == pytest.approx([3.0, -2.0], abs=0.05)
    assert answer["num_predicted"] == 400
    assert answer["most_off"] < 0.05


def test_the_model_that_was_given_stays_as_it_was(answer: Any) -> None:
    assert answer["is_unchanged"]


def test_an_rdd_is_trained_by_groups_at_their_own_pace(answer: Any) -> None:
    assert answer["parted"] == {"status": "done", "num_rows": 240}


def test_no_secret_is_in_the_settings_that_the_page_shows(answer: Any) -> None:
    assert answer["token"]
    assert not any(answer["token"] in value for _, value in answer["settings"])


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return drive("bad", tmp_path_factory.mktemp("bad"), "local[2]")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("list", "UsageError: the data must be a DataFrame or an RDD"),
        ("model", "UsageError: the model must be a torch.nn.Module, not type"),
        ("no loss", "UsageError: fit needs loss"),
        ("column", "UsageError: there is no column 'z'; the DataFrame has x, y"),
        ("empty", "UsageError: the DataFrame has no rows"),
        ("null", "UsageError: 1 rows have no value in column 'x'"),
        ("text", "UsageError: column 'x' holds text"),
        (
            "slots",
            "LaunchError: the Spark application at local[2] has 2 task slots, and it takes 9",
        ),
        ("sync", "UsageError: "),
        ("folder", "UsageError: there is no folder"),
        ("both", "UsageError: fit was given train and loss"),
        ("script", "ZeroDivisionError"),
        ("pickle", "UsageError: the model, or a function given to fit, cannot be sent"),
    ],
)
def test_what_cannot_be_meant_is_said(said: Any, case: str, words: str) -> None:
    assert words in said[case]


def test_a_task_that_is_killed_is_started_again_and_joins(tmp_path: Path) -> None:
    answer = drive("lossy", tmp_path, "local[2]")
    assert len(answer["killed"]) == 1
    assert answer["status"] == "done"
    assert answer["problems"] == []
    assert len(answer["uses"]) == 1  # all rows equally often, and the log says that this is right
    assert len(answer["workers"]) == 3


def test_tasks_of_a_barrier_stage_are_recognised(tmp_path: Path) -> None:
    answer = drive("barrier", tmp_path, "local[2]")
    assert answer["barrier"] == [[[0, 2, [1]], [1, 2, [1]]]] * 2
    assert "use gangline.spark.fit" in answer["ordinary"]


SCRIPT = """
import torch, gangline
gangline.init()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for _ in gangline.epochs(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
print("trained by", gangline.world_size())
"""


def test_a_script_runs_on_spark(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    conf = [f"--spark-conf={name}={value}" for name, value in settings(tmp_path).items()]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gangline.cli.main", "run", "--on", "spark"),
            *("--spark-master", "local[2]", *conf, "--run-dir", str(tmp_path / "run")),
            *("--no-report", "train.py"),
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DRIVER_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained by 2" in (tmp_path / "run" / "workers" / "0.log").read_text()
