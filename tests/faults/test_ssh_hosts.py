# SPDX-License-Identifier: Apache-2.0
"""`gangline run --hosts` with the real ssh, over networks that break."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
from ssh_hosts import ssh_hosts

from cases import quick_of
from fake_hosts import are_gone, await_true
from gangline.eventlog import read_run
from gangline.spec.event import StepDone, ViewAdopted

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
import os, sys, time
open(f"pid-{os.getpid()}", "w").close()
import gangline, torch
from torch.utils.data import DataLoader, TensorDataset

gangline.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.arange(96.0).reshape(24, 4) / 96, torch.ones(24, 1))
model, optimizer, loader = gangline.prepare(model, optimizer, DataLoader(data, batch_size=8))
for epoch in gangline.epochs(int(sys.argv[1])):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        time.sleep(0.0 if os.path.exists("go") else 0.1)
print("trained", gangline.world_size())
"""


def pids(folder: Path) -> list[int]:
    return [int(path.name[4:]) for path in folder.glob("pid-*")]


def steps_of(folder: Path) -> set[int]:
    """Who has made steps."""
    if not (folder / "r" / "events").is_dir():
        return set()
    return {event.worker for event in read_run(folder / "r") if isinstance(event, StepDone)}


@pytest.mark.slow
def test_hosts_train_and_one_that_is_unplugged_costs_its_worker_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with ssh_hosts(tmp_path, 2) as hosts:
        hosts.write("host0", "host1", "host9")
        flags = ["--hosts", "hosts.toml", "--run-dir", "r", "--everybody"]
        process = hosts.start("run", *flags, "train.py", "200")
        try:
            await_true(lambda: steps_of(tmp_path) == {0, 1}, "both to train", deadline_s=50)
            begun = pids(tmp_path)
            hosts.network.cut(1, peers=True, coordinator=True)
            await_true(lambda: any(are_gone([one]) for one in begun), "its worker to end")
            (tmp_path / "go").touch()
            said, _ = process.communicate(timeout=50)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 0, said
    assert "host host9 does not take part yet: ssh does not reach it" in said
    assert "host host1 is lost: " in said
    views = [event for event in read_run(tmp_path / "r") if isinstance(event, ViewAdopted)]
    assert {len(view.members) for view in views} == {1, 2}


@pytest.mark.parametrize(
    "number", quick_of([signal.SIGKILL, signal.SIGINT], quick=[signal.SIGKILL])
)
def test_nothing_is_left_on_hosts(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with ssh_hosts(tmp_path, 1) as hosts:
        hosts.write("host0")
        process = hosts.start("run", "--hosts", "hosts.toml", "--run-dir", "r", "train.py", "200")
        try:
            await_true(lambda: pids(tmp_path), "a worker", deadline_s=50)
            process.send_signal(number)
            await_true(lambda: are_gone(pids(tmp_path)), "it to end", deadline_s=20)
            process.communicate(timeout=20)
            # The agent does so when its workers have ended.
            await_true(
                lambda: not list(tmp_path.glob("runs/*/token")), "secrets to go", deadline_s=20
            )
        finally:
            process.kill()
            process.communicate()


def test_the_doctor_sees_that_two_hosts_do_not_reach_each_other(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, 2) as hosts:
        hosts.write("host0", "host1")
        hosts.network.drop_between(0, 1)
        process = hosts.start("doctor", "--hosts", "hosts.toml", "--json")
        said, _ = process.communicate(timeout=50)
    found = {one["name"]: one["findings"] for one in json.loads(said)["hosts"]}
    assert process.returncode == 1
    by_what = {one["what"]: one for one in found["host0"]}
    assert by_what["reachable"]["found"].endswith("from 198.18.0.1")
    assert by_what["reaches the coordinator"]["status"] == "ok"
    assert by_what["reaches host1"]["found"].startswith("filtered")
    assert by_what["reaches host1"]["advice"].startswith("a firewall is between them")


@pytest.mark.slow
@pytest.mark.parametrize("closed", [(1,), (1, 2)], ids=["one calls", "two are passed on"])
def test_hosts_that_let_nothing_in_train_by_calling_the_others(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "go").touch()
    with ssh_hosts(tmp_path, 3) as hosts:
        hosts.write("host0", "host1", "host2")
        for number in closed:
            hosts.close(number)
        flags = ["--hosts", "hosts.toml", "--run-dir", "r", "--everybody", "-o"]
        process = hosts.start("run", *flags, "train.py", "10")
        try:
            said, _ = process.communicate(timeout=55)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 0, said
    for number in closed:
        assert f"host host{number} is not reached by others: its workers open all" in said
    assert said.count("trained 3") == 3
