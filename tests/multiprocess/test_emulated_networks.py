# SPDX-License-Identifier: Apache-2.0
"""Emulated networks: as slow as asked, usable by a job, and gone with whoever made them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gangline.cli.main import run_command
from gangline.emulation.gates import PORT
from gangline.emulation.islands import address_of
from gangline.emulation.namespaces import inside
from gangline.emulation.networks import EmulatedNetwork
from gangline.eventlog import read_run
from gangline.spec.cluster import Cluster, NetworkLink, Node
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision, StepDone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLUSTER = Cluster(
    nodes=(
        Node(name="a", place="x", bytes_per_s=4e6),
        Node(name="b", place="x"),
        Node(name="c", place="y"),
    ),
    links=(NetworkLink(between=("x", "y"), bytes_per_s=2e6, delay_s=0.05),),
)
FILE = """\
[[nodes]]
name = "a"
bytes_per_s = 12.5e6

[[nodes]]
name = "b"
place = "y"

[[links]]
between = ["a", "y"]
bytes_per_s = 10e6
delay_s = 0.01
"""
TRAINING = """\
import json, os, socket, sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline

gangline.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
print(json.dumps([name for _, name in socket.if_nameindex()]))
"""
LARGER = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline

gangline.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 700), nn.Linear(700, 700), nn.Linear(700, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loader = DataLoader(TensorDataset(torch.randn(160, 4)), batch_size=8)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
print(float(sum(parameter.detach().double().sum() for parameter in model.parameters())))
"""
SLEEPING = """\
import os, time

print(os.stat("/proc/self/ns/net").st_ino, flush=True)
time.sleep(600)
"""


@pytest.fixture
def network() -> Iterator[EmulatedNetwork]:
    with emulated(CLUSTER) as made:
        yield made


def emulated(
    cluster: Cluster, *, dial: Callable[[], socket.socket] | None = None
) -> EmulatedNetwork:
    """A network, or a skipped test where none can be made."""
    try:
        with EmulatedNetwork(cluster):
            return EmulatedNetwork(cluster, dial=dial)
    except UsageError as error:
        pytest.skip(str(error))


def connected(network: EmulatedNetwork, source: int, target: int) -> tuple[socket.socket, ...]:
    """The two ends of a connection between two nodes."""
    here, there = (network.enclosures[node].namespace for node in (source, target))
    assert here is not None
    assert there is not None
    with inside(there, lambda: socket.create_server((address_of(target), 0))) as listener:
        address = listener.getsockname()
        near = inside(here, lambda: socket.create_connection(address))
        return near, listener.accept()[0]


def seconds_to_send(network: EmulatedNetwork, source: int, target: int, num_bytes: int) -> float:
    near, far = connected(network, source, target)
    with near, far:
        sender = threading.Thread(target=near.sendall, args=(bytes(num_bytes),))
        began = time.perf_counter()
        sender.start()
        missing = num_bytes
        while missing:
            missing -= len(far.recv(min(missing, 1 << 16)))
        sender.join()
        return time.perf_counter() - began


def seconds_to_answer(network: EmulatedNetwork, source: int, target: int) -> float:
    near, far = connected(network, source, target)
    with near, far:
        began = time.perf_counter()
        near.sendall(b"?")
        far.recv(1)
        far.sendall(b"!")
        near.recv(1)
        return time.perf_counter() - began


# A busy machine makes everything slower, so that only lower bounds are tight.


def test_a_nodes_own_link_has_the_bandwidth_that_was_asked_for(network: EmulatedNetwork) -> None:
    for source, target in ((0, 1), (1, 0)):
        assert 0.8 * 0.25 < seconds_to_send(network, source, target, 1_000_000) < 10 * 0.25


def test_a_link_between_places_has_bandwidth_and_delay(network: EmulatedNetwork) -> None:
    for source, target in ((1, 2), (2, 1)):
        assert 0.8 * 0.25 < seconds_to_send(network, source, target, 500_000) < 10 * 0.25
        assert 0.1 <= seconds_to_answer(network, source, target) < 2.0


def test_nodes_of_one_place_do_not_feel_the_link_out_of_it(network: EmulatedNetwork) -> None:
    assert min(seconds_to_answer(network, 0, 1) for _ in range(5)) < 0.1


def test_a_gate_leads_out_of_the_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside:
        dial = lambda: socket.create_connection(outside.getsockname())  # noqa: E731
        with emulated(CLUSTER, dial=dial) as network:
            enclosure = network.enclosures[2]
            assert enclosure.coordinator == f"ws://{address_of(2)}:{PORT}"
            assert enclosure.namespace is not None
            target = (address_of(2), PORT)
            with inside(enclosure.namespace, lambda: socket.create_connection(target)) as near:
                far, _ = outside.accept()
                with far:
                    near.sendall(b"hello")
                    assert far.recv(16) == b"hello"
                    far.sendall(b"yes")
                    assert near.recv(16) == b"yes"
                    near.shutdown(socket.SHUT_WR)
                    assert far.recv(16) == b""


def test_a_job_trains_over_emulated_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with emulated(CLUSTER):
        pass
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "cluster.toml").write_text(FILE)
    flags = ["--cluster", "cluster.toml", "--run-dir", "run", "--json"]
    assert run_command(["run", *flags, "train.py"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["steps"] == 5
    assert document["summary"]["step_median_s"] >= 0.01  # what one takes to hear of the other
    for worker in (0, 1):
        lines = (tmp_path / "run" / "workers" / f"{worker}.log").read_text().splitlines()
        assert {"lo", "eth0"} <= set(json.loads(lines[-1]))


@pytest.mark.slow
def test_who_is_behind_a_slow_link_is_a_spare_before_the_first_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With 2 MB of gradients at 1 MB/s, an exchange takes longer than the whole job."""
    with emulated(CLUSTER):
        pass
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(LARGER)
    nodes = "".join(f'[[nodes]]\nname = "{name}"\nbytes_per_s = 1e6\n' for name in "ab")
    (tmp_path / "cluster.toml").write_text(nodes)
    assert run_command(["run", "--cluster", "cluster.toml", "--run-dir", "run", "train.py"]) == 0
    capsys.readouterr()
    events = list(read_run(tmp_path / "run", notes=[]))
    (left_out,) = [e for e in events if isinstance(e, Decision) and e.what == "exclude"]
    assert "as a probe of the links says before the first exchange" in left_out.reason
    assert left_out.numbers["step"] == 0
    assert left_out.numbers["with_s"] > 1.0
    steps = [e for e in events if isinstance(e, StepDone)]
    assert len(steps) == 20, "one worker made them all"
    assert sum(e.exchange_s for e in steps) < 0.5
    logs = [(tmp_path / "run" / "workers" / f"{worker}.log").read_text() for worker in (0, 1)]
    assert logs[0].splitlines()[-1] == logs[1].splitlines()[-1], "the spare ends with its state"


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path: Path) -> None:
    with emulated(CLUSTER):
        pass
    (tmp_path / "train.py").write_text(SLEEPING)
    (tmp_path / "cluster.toml").write_text(FILE)
    command = ["run", "--cluster", "cluster.toml", "--run-dir", "run", "train.py"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "gangline.cli.main", *command],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    logs = [tmp_path / "run" / "workers" / f"{worker}.log" for worker in (0, 1)]
    try:
        until(lambda: all(log.exists() and log.read_text().endswith("\n") for log in logs))
        numbers = {int(log.read_text()) for log in logs}
        assert len(numbers) == 2
        assert numbers <= networks_in_use()
        launcher.send_signal(signal.SIGKILL)
    finally:
        launcher.kill()
        launcher.wait()
    until(lambda: not numbers & networks_in_use())


def networks_in_use() -> set[int]:
    """The network namespaces that some process is in."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(folder.stat().st_ino)
        except OSError:  # it has ended
            continue
    return found


def until(is_so: Callable[[], bool], *, patience_s: float = 40.0) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_links_are_refused_together_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SLEEPING)
    (tmp_path / "cluster.toml").write_text(FILE)
    assert run_command(["run", "--cluster", "cluster.toml", "--tls", "train.py"]) == 2
    assert "a cluster file with links cannot be run with TLS" in capsys.readouterr().err


def test_what_to_do_is_said_where_no_network_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *arguments: int) -> None:
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr("gangline.emulation.namespaces._call", refuse)
    with pytest.raises(UsageError) as found, EmulatedNetwork(CLUSTER):
        pass
    message = str(found.value)
    assert "emulating links needs root" in message
    assert "unshare --map-root-user gangline run" in message


def test_a_missing_command_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with emulated(CLUSTER):
        pass
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="needs the command `ip`, which is not there"):
        EmulatedNetwork(CLUSTER).__enter__()
