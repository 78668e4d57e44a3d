# SPDX-License-Identifier: Apache-2.0
"""What of the Ray engine needs no Ray: options, rows over a socket, reports, recognition."""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gangline.cli.main import run_command
from gangline.engines.ray.cluster import check_ray
from gangline.engines.ray.data.columns import pack, unpack
from gangline.engines.ray.data.rows import RayRows, WindowSampler
from gangline.engines.ray.data.source import Source
from gangline.engines.ray.results import Keeping, Results
from gangline.engines.ray.services.client import ActorClient
from gangline.engines.ray.services.desk import Desk
from gangline.engines.ray.services.framing import SOCKET_VARIABLE, Request
from gangline.launch.engines.ray.asked import check_run, run_config
from gangline.spec.engines.ray import RayConfig
from gangline.spec.errors import LaunchError, UsageError
from gangline.worker.started import ray_job, ray_train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = 10


class Table:
    """A service with the numbers from 0 on, and their names."""

    def answer(self, request: Request, data: bytes) -> tuple[dict[str, Any], Any]:
        if request.what == "length":
            return {"length": ROWS}, b""
        rows = np.frombuffer(data, dtype=np.int64)
        if rows.max() >= ROWS:
            raise IndexError(f"there is no row {rows.max()}")
        return pack({"id": rows, "name": np.array([f"n{row}" for row in rows], dtype=object)})


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(str(tmp_path), {"data:train": Table()})
    for name, value in made.variables.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ActorClient:
    """One that no other test has connected."""
    made = ActorClient()
    monkeypatch.setattr("gangline.engines.ray.data.rows.client", made)
    return made


@pytest.mark.usefixtures("desk", "client")
def test_a_worker_is_given_the_rows_that_it_asks_for() -> None:
    rows = RayRows("train")
    assert len(rows) == ROWS
    assert rows[3]["name"] == "n3"
    loader = rows.loader(4, shuffle=False)
    batches = list(loader)
    assert [batch["id"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches[0]["id"].dtype == torch.int64
    assert batches[2]["name"] == ["n8", "n9"]


@pytest.mark.usefixtures("desk", "client")
def test_loader_processes_ask_for_themselves() -> None:
    loader = RayRows("train").loader(2, num_workers=1)
    assert [row for batch in loader for row in batch["id"].tolist()] == list(range(ROWS))


@pytest.mark.usefixtures("desk")
def test_what_goes_wrong_at_the_actor_is_told_to_the_worker(client: ActorClient) -> None:
    with pytest.raises(LaunchError, match="IndexError: there is no row 10"):
        client.ask("data:train", "rows", np.array([10]).tobytes())
    with pytest.raises(LaunchError, match="there is no 'data:test' here"):
        client.ask("data:test", "length")
    assert client.ask("data:train", "length")[0] == {"length": ROWS}  # the line still works


def test_an_actor_that_is_gone_is_an_error(desk: Desk, client: ActorClient) -> None:
    desk.close()
    os.unlink(os.environ[SOCKET_VARIABLE])
    with pytest.raises(LaunchError, match="does not answer"):
        client.ask("data:train", "length")


def test_a_plain_process_has_no_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    with pytest.raises(UsageError, match="no worker of a GanglineTrainer"):
        ActorClient().ask("data:train", "length")


def test_columns_come_back_as_they_were() -> None:
    columns = {
        "image": np.arange(12, dtype=np.uint8).reshape(2, 3, 2),
        "weight": np.array([0.5, 1.5]),
        "is_good": np.array([True, False]),
        "text": np.array(["é", "b"], dtype=object),
    }
    described, data = pack(columns)
    found = unpack(json.loads(json.dumps(described))["columns"], data)
    assert found["text"] == ["é", "b"]
    for name in ("image", "weight", "is_good"):
        assert np.array_equal(found[name], columns[name])
        assert found[name].dtype == columns[name].dtype
    with pytest.raises(UsageError, match="the column 'x' holds what is neither"):
        pack({"x": np.array([object()], dtype=object)})


def test_a_window_shuffles_all_rows_once_and_differently_in_each_epoch() -> None:
    sampler = WindowSampler(10, 4, seed=1)
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert sorted(first[:4]) == [0, 1, 2, 3]


@pytest.mark.usefixtures("desk", "client")
def test_a_window_of_one_row_is_refused() -> None:
    with pytest.raises(UsageError, match="shuffle=1"):
        RayRows("train").loader(4, shuffle=1)


class FakeDataset:
    """Blocks of given sizes, of which it is noted how many were computed."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.computed = 0
        self.context = SimpleNamespace(execution_options=SimpleNamespace(preserve_order=False))

    def iter_internal_ref_bundles(self) -> Iterator[Any]:
        for number, size in enumerate(self.sizes):
            self.computed += 1
            metadata = SimpleNamespace(num_rows=size)
            entry = SimpleNamespace(ref=f"block {number}", metadata=metadata)
            yield SimpleNamespace(blocks=(entry,), slices=None)


def test_blocks_are_computed_as_their_rows_are_asked_for() -> None:
    dataset = FakeDataset(3, 0, 4, 5)
    source = Source(dataset, 12)
    assert dataset.context.execution_options.preserve_order
    assert [(one.first, one.rows) for one in source.blocks(0, 4)] == [(0, 3), (3, 4)]
    assert dataset.computed == 3
    assert [one.refs for one in source.blocks(2, 11)] == [["block 3"]]
    with pytest.raises(IndexError, match="there is no row 12: the data set had 12 rows"):
        source.blocks(0, 12)


def test_rows_that_nobody_has_counted_are_counted_by_running_the_data_set() -> None:
    dataset = FakeDataset(3, 4)
    source = Source(dataset)
    assert source.length() == 7
    assert len(source.blocks(0, 6)) == 2
    assert dataset.computed == 2  # once


def test_the_best_and_the_newest_checkpoints_are_kept() -> None:
    results = Results(Keeping(most=2, attribute="accuracy"))
    gone = [
        results.add({"accuracy": accuracy}, f"c{number}")
        for number, accuracy in enumerate((0.5, 0.9, 0.1, 0.2))
    ]
    assert gone == [[], [], ["c0"], ["c2"]]
    reports, _ = results.all()
    assert [one.checkpoint for one in reports] == ["", "c1", "", "c3"]
    assert results.add({"accuracy": 0.3}, "") == []


def scaling(**changes: Any) -> Any:
    """What a `ray.train.ScalingConfig` has."""
    return Scaling(**changes)


class Scaling:
    def __init__(self, **changes: Any) -> None:
        given: dict[str, Any] = {
            "num_workers": 1,
            "use_gpu": False,
            "resources_per_worker": None,
            "placement_strategy": "PACK",
            "accelerator_type": None,
            "trainer_resources": None,
            "use_tpu": False,
            "topology": None,
            "label_selector": None,
            "elastic_resize_monitor_interval_s": 60.0,
        }
        self.__dict__.update({**given, **changes})


def test_ray_s_scaling_is_a_run_s_configuration() -> None:
    asked = scaling(num_workers=(2, 6), use_gpu=True, accelerator_type="A100")
    config = run_config(asked, {"exchange": {"sync": "local(16)"}}, run="r")
    assert (config.on, config.run) == ("ray", "r")
    assert (config.hosts.min_workers, config.hosts.max_workers) == (2, 6)
    assert config.ray.bundle == {"CPU": 1.0, "GPU": 1.0, "accelerator_type:A100": 0.001}
    assert config.exchange.sync == "local(16)"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_tpu": True}, "use_tpu"),
        ({"trainer_resources": {"CPU": 1}}, "trainer_resources"),
        ({"elastic_resize_monitor_interval_s": 5.0}, "elastic_resize"),
        ({"num_workers": (3, 2)}, "num_workers"),
        ({"placement_strategy": "NEAR"}, "ray.strategy 'NEAR'"),
    ],
)
def test_what_a_trainer_would_not_do_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run_config(scaling(**changes), {}, run="r")


def test_the_run_s_own_options_do_not_contradict_ray_s() -> None:
    with pytest.raises(UsageError, match="gangline_config has 'ray'"):
        run_config(scaling(), {"ray": {"cpus": 2}}, run="r")

    class Run:
        def __init__(self, failure_config: Any = None) -> None:
            self.failure_config = failure_config

    check_run(Run())
    with pytest.raises(UsageError, match="failure_config"):
        check_run(Run(failure_config="three times"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cpus": 0.0}, "must take something"),
        ({"cpus": -1.0}, "CPU must be above 0"),
        ({"resources": {"x": 0.0}}, "x must be above 0"),
        ({"address": "ray://host:10001"}, "ray job submit"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RayConfig(**options)


def fake_version(found: str) -> Callable[[str], str]:
    return lambda package: found


def test_an_old_ray_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.engines.ray.cluster.version", fake_version("2.9.3"))
    with pytest.raises(LaunchError, match=r"ray 2\.9\.3 is too old.*pip install 'gangline\[ray\]'"):
        check_ray()
    monkeypatch.setattr("gangline.engines.ray.cluster.version", fake_version("2.60.0"))
    check_ray()


def test_flags_of_ray_are_for_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert run_command(["run", "--ray-gpus", "1", str(script)]) == 2
    assert "choose it by --on ray" in capsys.readouterr().err
    assert run_command(["run", "--on", "ray", "--ray-resource", "x", str(script)]) == 2
    assert "write NAME=AMOUNT" in capsys.readouterr().err
    assert run_command(["run", "--on", "k8s", str(script)]) == 2
    assert "gangline k8s --image" in capsys.readouterr().err


def test_a_submitted_job_s_script_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    told = json.dumps({"metadata": {"job_submission_id": "raysubmit_1"}})
    monkeypatch.setattr(sys, "argv", [str(script), "--epochs", "3"])
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    found = ray_job.recognise({"RAY_JOB_CONFIG_JSON_ENV_VAR": told})
    assert found is not None
    assert found.program == (str(script), "--epochs", "3")
    assert ray_job.recognise({}) is None
    assert ray_job.recognise({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{"}) is None
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert ray_job.recognise({"RAY_JOB_CONFIG_JSON_ENV_VAR": told}) is None


def test_a_worker_of_ray_train_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray.train", raising=False)
    assert ray_train.recognise({}) is None
    context = SimpleNamespace(
        get_world_rank=lambda: 1, get_world_size=lambda: 3, get_experiment_name=lambda: "mine"
    )
    module = ModuleType("ray.train")
    module.get_context = lambda: context  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray.train", module)
    found = ray_train.recognise({})
    assert found == ray_train.RayTrainWorker(run="mine", worker=1, workers=3)
    module.get_context = lambda: SimpleNamespace()  # type: ignore[attr-defined]
    assert ray_train.recognise({}) is None
