# SPDX-License-Identifier: Apache-2.0
"""`gangline up`: what it refuses before anything is started, and where it would listen."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from gangline.cli.main import run_command
from gangline.coordinator.server.assembly import Post, announced_host
from gangline.files import addresses
from gangline.files.addresses import all_interfaces, own_addresses
from gangline.files.config import write_config
from gangline.launch.joining import inviting
from gangline.launch.joining.inviting import listening, needs_tls
from gangline.spec.config import ListenConfig, RunConfig
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("print(1)\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "say how many workers will join, with --workers N"),
        (["--workers", "2", "--no-work"], "--no-work is for a job with a script"),
        (["--workers", "2", "--include", "x"], "--include is for a job with a script"),
        (["--reserved", "1", "train.py"], "--reserved is for a coordinator alone"),
        (["--token-file", "t", "train.py"], "--token-file is for a coordinator alone"),
        (["--no-work", "--wire-ports", "1-2", "train.py"], "--no-work starts none"),
        (["--no-code", "--include", "x", "train.py"], "cannot be given together"),
        (["--address", "a b", "train.py"], "is no name or address of a machine"),
        (["--invite-uses", "0", "train.py"], "an invitation has 1 to 4096 uses"),
        (["none.py"], "there is no script none.py"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["up", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_a_job_that_others_join_listens_on_all_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inviting, "_usual_port", lambda host: 7700)
    found = listening(None, None, ["desk"])
    assert found == ListenConfig(host=all_interfaces(), port=7700, names=("desk",))
    assert needs_tls(found.host)
    narrow = listening("127.0.0.1", 0, [])
    assert (narrow.port, needs_tls(narrow.host)) == (0, False)


def test_a_port_that_is_taken_is_not_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(inviting, "DEFAULT_PORT", taken.getsockname()[1])
        assert listening("127.0.0.1", None, []).port == 0


def test_addresses_that_others_reach_come_in_a_useful_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def address(text: str) -> object:
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        return SimpleNamespace(family=family, address=text)

    cards = {
        "lo": ["127.0.0.1", "::1"],
        "docker0": ["172.17.0.1"],
        "eth0": ["fd00::5", "fe80::1%eth0", "10.0.0.5", "169.254.1.1"],
        "eth1": ["192.168.1.5"],
        "down0": ["10.9.9.9"],
    }
    found = {name: [address(one) for one in each] for name, each in cards.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    states = {name: SimpleNamespace(isup=name != "down0") for name in cards}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    leads_out = {socket.AF_INET: "192.168.1.5", socket.AF_INET6: ""}
    monkeypatch.setattr(addresses, "_source_towards", lambda target, family: leads_out[family])
    assert own_addresses() == ["192.168.1.5", "10.0.0.5", "fd00::5", "172.17.0.1"]


def test_a_coordinator_on_all_interfaces_announces_one_that_others_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "gangline.coordinator.server.assembly.own_addresses"
    monkeypatch.setattr(module, lambda: ["10.0.0.5", "fd00::5"])
    assert [announced_host(host) for host in ("::", "0.0.0.0", "10.0.0.7")] == [
        "10.0.0.5", "10.0.0.5", None,
    ]  # fmt: skip
    write_config(RunConfig(listen=ListenConfig(host="::")), tmp_path)
    post = Post.of_run(tmp_path)
    assert (post.host, post.announced) == ("::", "10.0.0.5")
    monkeypatch.setattr(module, list)
    assert announced_host("::") == "127.0.0.1"


def test_a_place_to_listen_must_make_sense() -> None:
    for wrong in ({"port": -1}, {"port": 65536}, {"names": ("a b",)}, {"names": ("fe80::1%x",)}):
        with pytest.raises(UsageError, match="listen"):
            ListenConfig(**wrong)  # type: ignore[arg-type]
