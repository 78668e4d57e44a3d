# SPDX-License-Identifier: Apache-2.0
"""The doctor: its facts, what it makes of broken and missing tools, and what it prints."""

from __future__ import annotations

import builtins
import os
import sys
import time
from importlib import util
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest
import typer
from typer.testing import CliRunner

from gangline.cli import cmd_doctor
from gangline.profiling import machine, probes
from gangline.profiling.advice import Finding, Status, advise
from gangline.profiling.cgroups import ControlGroups, inspect_cgroups

if TYPE_CHECKING:
    from pathlib import Path

NOT_THERE = probes.Tool(version=None, problem="not on the PATH")
THERE = probes.Tool(version="1.0")
TOOLS = [
    "nvidia-smi",
    "nvidia-cuda-mps-control",
    "mpirun",
    "mpi4py",
    "java",
    "pyspark",
    "ray",
    "scikit-learn",
]
PLAIN = machine.MachineReport(
    host="desk",
    system="Linux",
    python="3.11.7",
    torch=probes.Torch(version="2.13.0", cpu_capability="AVX2", cuda=None),
    cores=machine.Cores(logical=8, physical=4, affinity=8, quota=None),
    caches=[machine.Cache(level=2, kind="unified", size_bytes=1310720, shared_by=2)],
    memory=machine.Memory(total_bytes=2**34, available_bytes=2**33, limit_bytes=None),
    cgroups=ControlGroups(version=2, cpu_quota=None, memory_limit_bytes=None, quota_writable=True),
    namespaces=machine.Namespaces(possible=True, missing=[]),
    gpus=[],
    tools=dict.fromkeys(TOOLS, THERE),
)


def finding(what: str, **changes: Any) -> Finding:
    report = msgspec.structs.replace(PLAIN, **changes)
    return next(found for found in advise(report) if found.what == what)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


# --- the machine ---------------------------------------------------------------------------------


def test_report_of_this_machine_is_whole_and_survives_json() -> None:
    report = machine.inspect_machine()
    assert report.cores.logical >= report.cores.affinity >= 1
    assert report.memory.total_bytes > report.memory.available_bytes > 0
    assert report.torch.problem is None
    assert set(report.tools) == set(TOOLS)
    assert msgspec.json.decode(msgspec.json.encode(report), type=machine.MachineReport) == report


def test_report_survives_when_proc_and_sys_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "inspect_tools", dict)
    report = machine.inspect_machine(tmp_path)
    assert report.caches == []
    assert report.cgroups.version is None
    assert not report.cgroups.quota_writable
    assert "linux" in report.namespaces.missing


def test_caches_are_read_and_broken_ones_passed_over(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpu0/cache"
    files = {
        f"{folder}/index{index}/{name}": text
        for index, texts in enumerate(
            [("3", "Unified", "48M", "0-3,8"), ("1", "Data", "48K", "0"), ("x", "", "", "")]
        )
        for name, text in zip(("level", "type", "size", "shared_cpu_list"), texts, strict=True)
    }
    assert machine.inspect_caches(write(tmp_path, files)) == [
        machine.Cache(level=1, kind="data", size_bytes=48 * 1024, shared_by=1),
        machine.Cache(level=3, kind="unified", size_bytes=48 * 1024**2, shared_by=5),
    ]


CGROUPS_V1 = {
    "proc/self/mounts": "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n"
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
    "proc/self/cgroup": "4:memory:/a\n1:cpu,cpuacct:/a/b\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1073741824\n",
}
CGROUPS_V2 = {
    "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
    "proc/self/cgroup": "0::/a/b\n",
    "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
    "sys/fs/cgroup/a/memory.max": "1073741824\n",
    "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
    "sys/fs/cgroup/a/b/memory.max": "max\n",
    "sys/fs/cgroup/a/b/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/a/b/cgroup.subtree_control": "\n",
}


def test_limits_of_the_groups_above_count_when_version_1(tmp_path: Path) -> None:
    assert inspect_cgroups(write(tmp_path, CGROUPS_V1)) == ControlGroups(
        version=1, cpu_quota=1.5, memory_limit_bytes=2**30, quota_writable=True
    )


def test_limits_of_the_groups_above_count_when_version_2(tmp_path: Path) -> None:
    assert inspect_cgroups(write(tmp_path, CGROUPS_V2)) == ControlGroups(
        version=2, cpu_quota=0.5, memory_limit_bytes=2**30, quota_writable=True
    )


def test_quotas_cannot_be_set_when_the_cpu_controller_is_not_delegated(tmp_path: Path) -> None:
    files = {**CGROUPS_V2, "sys/fs/cgroup/a/b/cgroup.controllers": "memory pids\n"}
    assert not inspect_cgroups(write(tmp_path, files)).quota_writable


@pytest.mark.parametrize("files", [CGROUPS_V1, CGROUPS_V2], ids=["v1", "v2"])
def test_quotas_cannot_be_set_when_the_files_are_read_only(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not inspect_cgroups(write(tmp_path, files)).quota_writable


@pytest.mark.parametrize("group", ["/docker/on/the/host", "/../../x"])
def test_group_of_the_host_is_taken_for_the_mount_when_it_is_not_there(
    group: str, tmp_path: Path
) -> None:
    files = {
        "proc/self/mounts": "broken\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        "proc/self/cgroup": f"nonsense\n0::{group}\n",
        "sys/fs/cgroup/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/memory.max": "nonsense\n",
    }
    found = inspect_cgroups(write(tmp_path, files))
    assert (found.cpu_quota, found.memory_limit_bytes) == (2.0, None)


def test_namespaces_name_what_is_missing_when_not_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    write(tmp_path, {"proc/self/ns/net": "", "proc/self/status": "CapEff:\t0000000000000000\n"})
    found = machine.inspect_namespaces(tmp_path)
    assert not found.possible
    assert found.missing == ["root", "the capabilities SYS_ADMIN and NET_ADMIN", "ip", "tc"]


# --- programs and packages -----------------------------------------------------------------------


def test_program_is_missing_when_it_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes.ask_program("mpirun", "--version") == NOT_THERE
    assert probes.find_program("nvidia-cuda-mps-control") == NOT_THERE


@pytest.mark.parametrize(
    ("body", "version", "problem"),
    [
        ("echo 'mpirun 4.1'; echo more", "mpirun 4.1", None),
        ("echo on stderr >&2", "on stderr", None),
        ("true", "of unknown version", None),
        ("printf '\\377\\376 1'", "\ufffd\ufffd 1", None),
        ("echo first; echo no libmpi >&2; exit 3", None, "fails with code 3: no libmpi"),
        ("exit 1", None, "fails with code 1: nothing"),
        ("kill -9 $$", None, "fails with code -9: nothing"),
    ],
)
def test_program_is_told_by_what_it_says(
    body: str,
    version: str | None,
    problem: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program(tmp_path, "tool", body)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert probes.ask_program("tool") == probes.Tool(version=version, problem=problem)


def test_program_and_its_children_are_ended_when_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "tool", f"sleep 600 & echo $! > {tmp_path}/child; wait")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(probes, "TIMEOUT_S", 0.5)
    began = time.monotonic()
    assert probes.ask_program("tool").problem == "did not answer within 0.5 s"
    assert time.monotonic() - began < 10
    child = int((tmp_path / "child").read_text())
    while psutil.pid_exists(child) and time.monotonic() - began < 10:
        time.sleep(0.01)
    assert not psutil.pid_exists(child)


def test_program_is_broken_when_it_cannot_be_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tool").write_bytes(b"\x7fELF rubbish")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    problem = probes.ask_program("tool").problem
    assert problem is not None
    assert problem.startswith("cannot be run: ")


def test_java_is_known_by_the_version_in_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "java", "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(probes, "ask_package", lambda *_: NOT_THERE)
    assert probes.inspect_tools()["java"] == probes.Tool(version="17.0.15")


def test_package_is_looked_up_and_not_imported() -> None:
    assert probes.find_package("msgspec").version == msgspec.__version__
    assert probes.find_package("no-such-package").problem == "not installed"


def test_package_is_usable_when_it_has_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.find_package("of-the-library", module="json").version == "of unknown version"


def test_package_is_broken_when_looking_for_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "halfway", ModuleType("halfway"))
    monkeypatch.setattr(sys.modules["halfway"], "__spec__", None)
    with pytest.raises(ValueError, match="__spec__"):
        util.find_spec("halfway")
    problem = probes.find_package("halfway").problem
    assert problem is not None
    assert problem.startswith("cannot be imported: ")


def test_package_is_broken_when_its_import_fails_in_a_process_of_its_own() -> None:
    found = probes.ask_package("msgspec", "raise ImportError('libmpi.so.40 is missing')")
    assert found.problem == "fails with code 1: ImportError: libmpi.so.40 is missing"
    assert probes.ask_package("msgspec", "print('4.0 with MPI')").version == "4.0 with MPI"
    assert probes.ask_package("no-such-package", "").problem == "not installed"


@pytest.mark.parametrize(
    "error", [ImportError("no torch\nmore"), OSError("libtorch.so"), RuntimeError("odd")]
)
def test_torch_is_broken_when_its_import_raises_anything(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def failing_import(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "torch":
            raise error
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", failing_import)
    facts, gpus = probes.inspect_torch()
    monkeypatch.undo()
    assert facts.problem == f"{type(error).__name__}: {str(error).splitlines()[0]}"
    assert gpus == []


def test_gpus_are_none_when_the_driver_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def fail() -> int:
        raise RuntimeError("CUDA unknown error")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", fail)
    assert probes.inspect_torch()[1] == []


# --- advice --------------------------------------------------------------------------------------


def test_nothing_is_advised_when_everything_is_there() -> None:
    findings = advise(PLAIN)
    assert {found.what for found in findings if found.status is not Status.OK} == {"GPUs"}


@pytest.mark.parametrize(
    ("what", "changes", "status", "words"),
    [
        (
            "torch",
            {
                "torch": probes.Torch(
                    version=None, cpu_capability=None, cuda=None, problem="ImportError: x"
                )
            },
            Status.BROKEN,
            ["pip install", "nothing trains"],
        ),
        (
            "cores",
            {"cores": machine.Cores(logical=8, physical=None, affinity=4, quota=1.5)},
            Status.LIMITED,
            ["4 allowed by affinity", "1.5 allowed by the control group", "gets 1.5 of 8"],
        ),
        ("caches", {"caches": []}, Status.MISSING, ["unknown"]),
        (
            "memory",
            {"memory": machine.Memory(total_bytes=2**34, available_bytes=1, limit_bytes=2**30)},
            Status.LIMITED,
            ["1 GiB allowed", "docker --memory"],
        ),
        (
            "control groups",
            {
                "cgroups": ControlGroups(
                    version=2, cpu_quota=None, memory_limit_bytes=None, quota_writable=False
                )
            },
            Status.MISSING,
            ["version 2, read only", "run as root"],
        ),
        (
            "network namespaces",
            {"namespaces": machine.Namespaces(possible=False, missing=["root", "ip"])},
            Status.MISSING,
            ["without root, ip", "iproute2"],
        ),
        *(
            (name, {"tools": {**PLAIN.tools, name: NOT_THERE}}, Status.MISSING, words)
            for name, words in {
                "mpirun": ["not on the PATH", "openmpi-bin"],
                "mpi4py": ["pip install mpi4py"],
                "java": ["Java 17"],
                "pyspark": ["pip install pyspark"],
                "ray": ["pip install ray"],
                "scikit-learn": ["pip install gangline[demo]"],
            }.items()
        ),
    ],
)
def test_advice_says_what_to_do_when_something_is_missing(
    what: str, changes: dict[str, Any], status: Status, words: list[str]
) -> None:
    found = finding(what, **changes)
    assert found.status is status
    assert found.advice
    assert [word for word in words if word not in f"{found.found} {found.advice}"] == []


@pytest.mark.parametrize(
    ("cuda", "driver", "words"),
    [
        (None, NOT_THERE, "training on CPUs works"),
        (None, THERE, "install a torch that is built for CUDA"),
        ("13.0", THERE, "see that the driver fits CUDA 13.0"),
    ],
)
def test_advice_tells_a_cpu_build_from_a_driver_that_does_not_fit(
    cuda: str | None, driver: probes.Tool, words: str
) -> None:
    torch = probes.Torch(version="2.13.0", cpu_capability="AVX2", cuda=cuda)
    found = finding("GPUs", torch=torch, tools={**PLAIN.tools, "nvidia-smi": driver})
    assert words in found.advice


def test_gpus_are_listed_with_what_divides_them() -> None:
    gpus = [probes.Gpu(name="H200", memory_bytes=139 * 2**30)]
    tools = {**PLAIN.tools, "nvidia-cuda-mps-control": NOT_THERE}
    assert finding("GPUs", gpus=gpus).found == "H200 139 GiB"
    assert finding("CUDA MPS", gpus=gpus).status is Status.OK
    assert "divide one GPU" in finding("CUDA MPS", gpus=gpus, tools=tools).advice


# --- the command ---------------------------------------------------------------------------------


def run_doctor(
    monkeypatch: pytest.MonkeyPatch, report: machine.MachineReport, *arguments: str
) -> Any:
    monkeypatch.setattr(machine, "inspect_machine", lambda: report)
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    app.callback()(lambda: None)
    cmd_doctor.register(app)
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_table_shows_findings_and_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    report = msgspec.structs.replace(PLAIN, tools={**PLAIN.tools, "scikit-learn": NOT_THERE})
    result = run_doctor(monkeypatch, report)
    assert result.exit_code == 0
    for words in ("gangline doctor on desk", "L2 1.25 MiB shared by 2", "gangline[demo]"):
        assert words in result.output


def test_json_is_the_whole_report(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_doctor(monkeypatch, PLAIN, "--json")
    assert msgspec.json.decode(result.output.encode(), type=machine.MachineReport) == PLAIN


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_doctor_fails_when_torch_is_broken(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = probes.Torch(version=None, cpu_capability=None, cuda=None, problem="OSError: x")
    result = run_doctor(monkeypatch, msgspec.structs.replace(PLAIN, torch=torch), *arguments)
    assert result.exit_code == 1
    assert "OSError: x" in result.output
