# SPDX-License-Identifier: Apache-2.0
"""`gangline doctor --hosts`: what is found of hosts, and what is said to do about it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fake_hosts import FakeHosts
from gangline.cli.main import run_command
from gangline.engines.hosts.checkup import COORDINATOR, HostReport
from gangline.launch.checkup import findings_of
from gangline.profiling.advice import Finding, Status
from gangline.protocol.agents import Examined, Gpu, Here
from gangline.protocol.reaching import GREETING, Attempt, Reach
from gangline.spec.machines.hosts import Host
from gangline.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

HOST = Host(name="lab", user="anna")
HERE = Here(
    version=1, gangline=VERSION, python="3.11.2", hostname="lab", clock_s=0.0, seen_from="10.0.0.5"
)
EXAMINED = Examined(
    folder="/home/anna",
    has_folder=True,
    free_bytes=10 << 30,
    packages={"torch": "2.13.0+cu130"},
    gpus=(),
    asked_at_s=0.0,
    told_at_s=0.0,
    address="10.0.0.7",
    port=7700,
)
OPEN = Attempt(reach=Reach.OPEN, own_address="10.0.0.7", greeting=GREETING)


def found(host: Host = HOST, **changes: Any) -> dict[str, Finding]:
    """The findings by what they are about; `changes` are of the report, or of what was examined."""
    own = {name: changes.pop(name) for name in tuple(changes) if name in Examined.__struct_fields__}
    examined = msgspec.structs.replace(EXAMINED, **own)
    report = HostReport(name="lab", **{"here": HERE, "examined": examined, **changes})
    versions = {"torch": "2.13.0+cpu"}
    all_of = findings_of(host, report, own=versions, ports=(7700, 7799))
    return {finding.what: finding for finding in all_of}


def test_a_host_with_everything_is_fit() -> None:
    findings = found(attempts={COORDINATOR: OPEN, "desk": OPEN})
    assert {finding.status for finding in findings.values()} == {Status.OK}


def test_what_differs_or_is_missing_comes_with_the_command_that_mends_it() -> None:
    finding = found(packages={"torch": "2.12.0"})["torch"]
    assert finding.status is Status.LIMITED
    assert "`ssh anna@lab python3 -m pip install torch==2.13.0+cpu`" in finding.advice
    assert found(packages={"torch": None})["torch"].status is Status.BROKEN


def test_a_gpu_that_is_not_there_is_named() -> None:
    asked = Host(name="lab", devices=(0, 2))
    gpus = (Gpu(name="RTX 2080", memory_mib=8192),) * 2
    finding = found(asked, gpus=gpus)["GPUs"]
    assert (finding.status, "names 2" in finding.advice) == (Status.BROKEN, True)
    assert "RTX 2080 8 GiB" in finding.found


@pytest.mark.parametrize(
    ("clock_s", "error_s", "status"),
    [
        (0.5, 0.1, Status.OK),
        (-60.0, 0.1, Status.LIMITED),
        (3.0, 2.5, Status.OK),
        (8000.0, 1.0, Status.BROKEN),
    ],
)
def test_a_clock_is_wrong_only_where_that_is_sure(
    clock_s: float, error_s: float, status: Status
) -> None:
    assert found(clock_s=clock_s, clock_error_s=error_s)["clock"].status is status


@pytest.mark.parametrize(
    ("reach", "said"),
    [
        (Reach.FILTERED, "let TCP in on desk, ports 7700-7799"),
        (Reach.REFUSED, "a firewall refuses"),
        (Reach.UNREACHABLE, "no route to desk"),
        (Reach.UNKNOWN, "the name of desk is not known"),
        (Reach.OPEN, "something else answers"),
    ],
)
def test_it_is_said_what_to_open(reach: Reach, said: str) -> None:
    finding = found(attempts={"desk": Attempt(reach=reach)})["reaches desk"]
    assert finding.status is Status.BROKEN
    assert said in finding.advice


def test_a_host_that_calls_need_not_be_called() -> None:
    report = HostReport(
        name="lab",
        here=HERE,
        examined=EXAMINED,
        attempts={"desk": Attempt(reach=Reach.FILTERED)},
    )
    findings = findings_of(HOST, report, own={"torch": "2.13.0"}, ports=None, callers={"desk"})
    finding = next(one for one in findings if one.what == "reaches desk")
    assert finding.status is Status.LIMITED
    assert finding.advice.startswith("nothing: desk calls this host instead")


def test_a_problem_says_what_to_do() -> None:
    problem = "ssh does not reach it (connect: No route): see that `ssh lab true` works"
    report = HostReport(name="lab", problem=problem)
    (finding,) = findings_of(HOST, report, own={}, ports=None)
    assert finding.found == "ssh does not reach it (connect: No route)"
    assert finding.advice == "see that `ssh lab true` works"


def test_hosts_are_looked_at_side_by_side_and_one_that_is_down_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hosts = FakeHosts(tmp_path, monkeypatch)
    hosts.write("alpha", "beta", "gamma")
    hosts.take_down("beta")
    begun_s = time.monotonic()
    assert run_command(["doctor", "--hosts", "hosts.toml", "--json"]) == 1
    assert time.monotonic() - begun_s < 20
    alpha, beta, gamma = json.loads(capsys.readouterr().out)["hosts"]
    assert [one["fit"] for one in (alpha, beta, gamma)] == [True, False, True]
    reached = [one["what"] for one in alpha["findings"] if one["what"].startswith("reaches")]
    assert reached == ["reaches the coordinator", "reaches gamma"]
    (finding,) = beta["findings"]
    assert "No route to host" in finding["found"]
    assert finding["advice"] == "see that `ssh beta true` works"
    assert not list(tmp_path.rglob("runs"))
