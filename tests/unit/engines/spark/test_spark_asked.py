# SPDX-License-Identifier: Apache-2.0
"""What `fit` is asked is checked before Spark computes anything, and means what it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from gangline.engines.spark.task import devices
from gangline.engines.spark.training.state import check_model, load_state, write_state
from gangline.spark.asked import config_of, parse_size, sizes_fit, work_of
from gangline.spec.config import HostsConfig, RunConfig
from gangline.spec.engines.spark import SparkConfig
from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

PIECES: dict[str, Any] = {
    "train": None,
    "loss": nn.MSELoss(),
    "optimizer": None,
    "features": ["x"],
    "label": "y",
    "epochs": 1,
    "batch": 8,
    "shuffle": True,
    "options": None,
}
ASKED: dict[str, Any] = {
    "sync": None,
    "workers": None,
    "min_workers": 1,
    "strict": False,
    "name": None,
}


def own_loop(model: nn.Module, rows: Any) -> None:
    """Trains nothing."""


def test_pieces_are_a_work_by_adam() -> None:
    work = work_of(nn.Linear(1, 1), **{**PIECES, "features": "x"})
    assert work.features == ("x",)
    assert work.optimizer is torch.optim.Adam


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": None}, "fit needs loss"),
        ({"features": None}, "fit needs features"),
        ({"label": None}, "fit needs label"),
        ({"loss": 3}, "loss must be a function"),
        ({"epochs": 0}, "epochs and batch must be 1 or more"),
        ({"batch": 0}, "epochs and batch must be 1 or more"),
        ({"shuffle": "files"}, "shuffle is True, False or"),
        ({"train": own_loop}, "fit was given train and loss"),
        ({"train": own_loop, "loss": None, "options": {}}, "fit was given train and options"),
        ({"train": "train.py", "loss": None}, "train must be a function of model and rows"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        work_of(nn.Linear(1, 1), **{**PIECES, **change})


class Extra(nn.Linear):
    """A layer with more than tensors in its state."""

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        """Nothing to do."""


def test_a_model_that_cannot_come_back_is_refused() -> None:
    with pytest.raises(UsageError, match=r"must be a torch\.nn\.Module, not type"):
        check_model(nn.Linear)
    with pytest.raises(UsageError, match="'_extra_state', which is no tensor"):
        check_model(Extra(1, 1))
    with pytest.raises(UsageError, match="nothing would be trained"):
        check_model(nn.Linear(1, 1).requires_grad_(False))


def test_a_state_that_was_written_is_loaded(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    write_state(model, tmp_path / "state")
    load_state(other, (tmp_path / "state").read_bytes())
    assert torch.equal(model.weight, other.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("cut", [0, 30])
def test_a_state_that_does_not_fit_is_named(tmp_path: Path, cut: int) -> None:
    write_state(nn.Linear(2, 3), tmp_path / "state")
    data = (tmp_path / "state").read_bytes()[cut:]
    with pytest.raises(LaunchError, match="does not fit the model that was given"):
        load_state(nn.Linear(2, 4), data)


# --- the configuration -------------------------------------------------------------------------------


def test_fit_asks_for_the_engine_spark() -> None:
    config = config_of(None, **{**ASKED, "workers": 3, "min_workers": 2, "sync": "local(4)"})
    assert (config.on, config.hosts.max_workers, config.hosts.min_workers) == ("spark", 3, 2)
    assert config.exchange.sync == "local(4)"
    assert config.survival.respawn


def test_what_a_configuration_says_stays() -> None:
    given = RunConfig(run="r", hosts=HostsConfig(max_workers=5), spark=SparkConfig(strict=True))
    config = config_of(given, **ASKED)
    assert (config.run, config.hosts.max_workers, config.spark.strict) == ("r", 5, True)
    assert not config.survival.respawn


@pytest.mark.parametrize(
    ("change", "words"),
    [({"workers": 0}, "workers must be 1 or more"), ({"sync": "sometimes"}, "sometimes")],
)
def test_a_strange_number_or_mode_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        config_of(None, **{**ASKED, **change})


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ("executor.memory=2g", "no setting of Spark"),
        ("spark.executor.memory", "no setting of Spark"),
        ("spark.authenticate.secret=abc", "would show a secret"),
        ("spark.ssl.keyPassword=abc", "would show a secret"),
        ("spark.master=local", "say it by spark.master"),
    ],
)
def test_a_setting_that_is_none_or_secret_is_refused(conf: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        SparkConfig(conf=(conf,))
    assert "abc" not in str(caught.value)


def test_settings_are_read_by_name() -> None:
    assert SparkConfig(conf=("spark.a=1", "spark.b=x=y")).settings == {
        "spark.a": "1",
        "spark.b": "x=y",
    }


# --- sizes and devices -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("1g", 1 << 30), ("512m", 512 << 20), ("10 KB", 10 << 10), ("77", 77), ("0", 0), ("much", 0)],
)
def test_sizes_are_read_as_spark_writes_them(text: str, size: int) -> None:
    assert parse_size(text) == size


def context_with(limit: str) -> Any:
    conf = {"spark.driver.maxResultSize": limit}
    return SimpleNamespace(getConf=lambda: conf)


def test_a_model_that_is_too_large_to_come_back_is_refused_at_once() -> None:
    sizes_fit(context_with("1g"), nn.Linear(8, 8))
    sizes_fit(context_with("0"), nn.Linear(8, 8))
    with pytest.raises(UsageError, match=r"may bring back 1k \(spark.driver.maxResultSize\)"):
        sizes_fit(context_with("1k"), nn.Linear(64, 64))


def test_a_task_has_the_gpus_that_spark_gives_it() -> None:
    assert devices({}) == {}
    gpus = SimpleNamespace(addresses=["1", "3"])
    assert devices({"gpu": gpus}) == {"CUDA_VISIBLE_DEVICES": "1,3"}
