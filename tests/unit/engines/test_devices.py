# SPDX-License-Identifier: Apache-2.0
"""What workers compute on: one GPU each, as far as it can be seen without having any."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import gangline
from gangline.cli.run import cmd_join
from gangline.cli.run.cmd_join import JoinFlags
from gangline.engines.job import Job
from gangline.launch import devices as devices_module
from gangline.launch import resolve
from gangline.launch.devices import find_gpus, placed
from gangline.spec.cluster import Cluster, Node
from gangline.spec.config import ComputeConfig, RunConfig
from gangline.spec.errors import UsageError
from gangline.worker.devices import own_device

GPUS = ("0", "1", "2")


def config(devices: str = "auto", cluster: Cluster | None = None) -> RunConfig:
    compute = ComputeConfig(devices=devices)
    return RunConfig(compute=compute, cluster=cluster or RunConfig().cluster)


def shown(given: RunConfig) -> list[str | None]:
    """What each worker sees, where the launcher itself sees GPU 9."""
    job = Job(config=given, run_dir=Path("r"), script=Path("train.py"))
    commands = job.commands({"CUDA_VISIBLE_DEVICES": "9"}, cores=4)
    return [one.environment["CUDA_VISIBLE_DEVICES"] for one in commands]


@pytest.mark.parametrize(
    ("devices", "gpus", "expected"),
    [
        ("auto", GPUS, ["0", "1", "2"]),
        ("auto", ("5", "GPU-ab"), ["5", "GPU-ab"]),
        ("auto", (), ["9"]),
        ("cpu", GPUS, [""]),
        ("2,0", GPUS, ["2", "0"]),
        ("1", GPUS, ["1"]),
        ("GPU-ab,MIG-1/2", (), ["GPU-ab", "MIG-1/2"]),
    ],
)
def test_there_is_a_worker_for_each_device(
    devices: str, gpus: tuple[str, ...], expected: list[str]
) -> None:
    assert shown(placed(config(devices), is_described=False, gpus=gpus)) == expected


@pytest.mark.parametrize(
    ("devices", "cluster", "expected"),
    [
        ("auto", Cluster.of_speeds((1.0,)), ["0"]),
        ("auto", Cluster.of_speeds((1.0,), workers=5), ["0", "1", "2", "0", "1"]),
        ("auto", Cluster.of_speeds((1.0, 1.0)), ["9", "9"]),
        ("auto", Cluster.of_speeds((0.5,)), ["9"]),
        ("1,2", Cluster.of_speeds((1.0, 0.5, 0.5)), ["1", "2", "1"]),
        ("cpu", Cluster.of_speeds((1.0, 0.5)), ["", ""]),
    ],
)
def test_nodes_that_are_described_are_as_many_as_they_are(
    devices: str, cluster: Cluster, expected: list[str]
) -> None:
    assert shown(placed(config(devices, cluster), is_described=True, gpus=GPUS)) == expected


def test_what_a_cluster_file_says_of_devices_holds() -> None:
    node = Node(name="n0", environment={"CUDA_VISIBLE_DEVICES": "7"})
    given = config(cluster=Cluster(nodes=(node,)))
    assert placed(given, is_described=True, gpus=GPUS) == given


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="names GPU 4, which is not there: there are 0, 1, 2"):
        placed(config("1,4"), is_described=False, gpus=GPUS)
    with pytest.raises(UsageError, match="torch can use none on this machine"):
        placed(config("0"), is_described=False, gpus=())


@pytest.mark.parametrize("text", ["", "gpu", "0,", "0, 1", "-1", "0,0", "cuda:0"])
def test_what_names_no_devices_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"compute\.devices"):
        ComputeConfig(devices=text)


def test_a_run_has_as_many_workers_as_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[resolve.__module__], "find_gpus", lambda: GPUS)
    resolved = resolve(RunConfig())
    assert (resolved.num_workers, resolved.compute.devices) == (3, "0,1,2")
    assert resolve(resolved) == resolved
    assert resolve(RunConfig(), is_described=True).num_workers == 1


def test_so_has_a_machine_that_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cmd_join, "find_gpus", lambda: GPUS)
    assert JoinFlags().config().num_workers == 3
    assert JoinFlags(workers=1, given=frozenset({"workers"})).config().num_workers == 1
    assert JoinFlags(devices="cpu").config().num_workers == 1
    assert JoinFlags(speed=0.5).config().num_workers == 1, "it is emulated"
    with pytest.raises(UsageError, match="--devices 'x'"):
        JoinFlags(devices="x").config()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("0", "1")),
        ({"CUDA_VISIBLE_DEVICES": "3, 5"}, ("3", "5")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
    ],
)
def test_gpus_are_found_by_their_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    expected: tuple[str, ...],
) -> None:
    for name in ("nvidia0", "nvidia3", "nvidiactl", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(devices_module, "_torch_has_cuda", lambda: True)
    assert find_gpus(environment, devices=tmp_path) == expected
    assert find_gpus(environment, devices=tmp_path / "nowhere") == ()
    monkeypatch.setattr(devices_module, "_torch_has_cuda", lambda: False)
    assert find_gpus(environment, devices=tmp_path) == (), "torch was built for CPUs"


def test_whether_torch_was_built_for_gpus_is_seen_without_loading_it() -> None:
    assert devices_module._torch_has_cuda() == (torch.version.cuda is not None)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "cuda:2"),
        ({"LOCAL_RANK": "1"}, "cuda:1"),
        ({"LOCAL_RANK": "5"}, "cuda:1"),
        ({"LOCAL_RANK": "1", "GANGLINE_LAUNCH": "{}"}, "cuda:2"),
    ],
)
def test_a_worker_knows_its_device(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    def has(name: str, value: Any) -> None:
        monkeypatch.setattr(torch.cuda, name, lambda: value)

    has("is_available", True)
    has("device_count", 4)
    has("current_device", 2)
    assert str(own_device(environment)) == expected
    has("is_available", False)
    assert str(own_device(environment)) == "cpu"


def test_a_script_asks_for_it_before_anything_else() -> None:
    assert isinstance(gangline.device(), torch.device)
