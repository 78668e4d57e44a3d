# SPDX-License-Identifier: Apache-2.0
"""What `gangline doctor --hosts` finds, and what to do about it: reports in, findings out."""

from __future__ import annotations

import platform
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.hosts.checkup import COORDINATOR, Asked, HostReport, check_hosts, is_us
from gangline.profiling.advice import Finding, Status, in_units
from gangline.protocol.reaching import Reach
from gangline.spec.config import ANY_ADDRESS
from gangline.spec.machines.hosts import read_hosts, split_place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gangline.protocol.agents import Examined
    from gangline.protocol.reaching import Attempt
    from gangline.spec.machines.hosts import Host

PACKAGES = ("torch", "numpy", "msgspec")
"""What a worker computes and speaks with: the same versions everywhere save surprises."""
LITTLE_BYTES = 1 << 30
_CLOCK_S, _MOST_CLOCK_S = 2.0, 3600.0
"""A clock that is further off mixes up the order of events; much further, it refuses certificates."""


class HostFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one host."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def is_fit(self) -> bool:
        """Whether workers can train there."""
        return not any(one.status is Status.BROKEN for one in self.findings)


def check(
    file: Path, *, listen: str | None, ports: tuple[int, int] | None, deadline_s: float
) -> list[HostFindings]:
    """Looks at the hosts of a file, within a deadline."""
    hosts = read_hosts(file)
    address, port = split_place(listen or ANY_ADDRESS, name="--listen")
    asked = Asked(listen=address, port=port, ports=ports, packages=PACKAGES, deadline_s=deadline_s)
    with tempfile.TemporaryDirectory(prefix="gangline-doctor-") as folder:
        reports = check_hosts(hosts, asked, log_dir=Path(folder))
    own = {name: _own_version(name) for name in PACKAGES}
    found = []
    for host, report in zip(hosts, reports, strict=True):
        callers = {one.name for one in reports if _reaches(one, host.name)}
        findings = findings_of(host, report, own=own, ports=ports, callers=callers)
        found.append(HostFindings(name=host.name, findings=tuple(findings)))
    return found


def _reaches(report: HostReport, name: str) -> bool:
    return name in report.attempts and is_us(report.attempts[name])


def findings_of(
    host: Host,
    report: HostReport,
    *,
    own: dict[str, str | None],
    ports: tuple[int, int] | None,
    callers: Collection[str] = (),
) -> Iterator[Finding]:
    """The findings of one host; `own` are the versions of this machine, `callers` who reaches it."""
    if report.problem is not None:
        found, advice = _parted(report.problem)
        what = "reachable" if report.here is None else "fit"
        yield Finding(what=what, found=found, status=Status.BROKEN, advice=advice)
        return
    here, examined = report.here, report.examined
    assert here is not None
    assert examined is not None
    found = f"as {here.hostname}, from {here.seen_from or 'an unknown address'}"
    yield Finding(what="reachable", found=found, status=Status.OK)
    yield _python(here.python, host)
    yield Finding(what="gangline", found=here.gangline, status=Status.OK)
    for name, version in examined.packages.items():
        yield _package(name, version, own[name], host)
    yield _gpus(host, examined)
    yield _folder(examined)
    yield _clock(report)
    for name, attempt in report.attempts.items():
        yield _reached(name, attempt, ports=ports, calls=name in callers)
    if examined.problem:
        span = "any port" if ports is None else f"a port of {ports[0]}-{ports[1]}"
        advice = "free one, or give another range by --wire-ports"
        found = f"cannot listen on {span}: {examined.problem}"
        yield Finding(what="own port", found=found, status=Status.BROKEN, advice=advice)


def _parted(problem: str) -> tuple[str, str]:
    """What is wrong and what to do, of a problem that says both; what ssh said is in brackets."""
    found, _, advice = problem.rpartition(": ")
    is_inside = advice.count(")") > advice.count("(")
    return (
        (problem, "try again, and look at the host itself")
        if is_inside or not found
        else (found, advice)
    )


def _python(version: str, host: Host) -> Finding:
    own = platform.python_version()
    if version.split(".")[:2] == own.split(".")[:2]:
        return Finding(what="python", found=version, status=Status.OK)
    advice = (
        f"this machine has {own}: what is pickled may not be read; name another than {host.python}"
    )
    return Finding(what="python", found=version, status=Status.LIMITED, advice=advice)


def _package(name: str, version: str | None, own: str | None, host: Host) -> Finding:
    command = f"`ssh {host.destination} {host.python} -m pip install {name}=={own}`"
    if version is None:
        return Finding(
            what=name, found="none", status=Status.BROKEN, advice=f"install it: {command}"
        )
    if own is None or version.partition("+")[0] == own.partition("+")[0]:
        return Finding(what=name, found=version, status=Status.OK)
    advice = f"this machine has {own}: {command}"
    return Finding(what=name, found=version, status=Status.LIMITED, advice=advice)


def _gpus(host: Host, examined: Examined) -> Finding:
    gpus = examined.gpus
    found = ", ".join(f"{gpu.name} {in_units(gpu.memory_mib << 20)}" for gpu in gpus) or "none"
    missing = [one for one in host.chosen_devices(len(gpus)) if one >= len(gpus)]
    if missing:
        advice = f"`devices` in the hosts file names {missing[0]}: they are numbered from 0"
        return Finding(what="GPUs", found=found, status=Status.BROKEN, advice=advice)
    if gpus and host.devices is None:
        advice = 'to use each by a worker of its own, write `devices = "all"` into the hosts file'
        return Finding(what="GPUs", found=found, status=Status.OK, advice=advice)
    return Finding(what="GPUs", found=found, status=Status.OK)


def _folder(examined: Examined) -> Finding:
    found = f"{examined.folder}, {in_units(examined.free_bytes)} free"
    if not examined.has_folder:
        advice = "make it, name another by `folder` in the hosts file, or use --bring"
        found = f"there is no {examined.folder}"
        return Finding(what="folder", found=found, status=Status.LIMITED, advice=advice)
    if examined.free_bytes < LITTLE_BYTES:
        advice = "make room: logs and checkpoints are written there"
        return Finding(what="folder", found=found, status=Status.LIMITED, advice=advice)
    return Finding(what="folder", found=found, status=Status.OK)


def _clock(report: HostReport) -> Finding:
    off, error = report.clock_s, report.clock_error_s
    found = f"{abs(off):.2f} s {'before' if off > 0 else 'behind'}, give or take {error:.2f} s"
    surely = max(0.0, abs(off) - error)
    if surely < _CLOCK_S:
        return Finding(what="clock", found=found, status=Status.OK)
    advice = "set it, as by a time service (chrony, systemd-timesyncd)"
    status = Status.BROKEN if surely > _MOST_CLOCK_S else Status.LIMITED
    return Finding(what="clock", found=found, status=status, advice=advice)


def _reached(name: str, attempt: Attempt, *, ports: tuple[int, int] | None, calls: bool) -> Finding:
    what = f"reaches {name}"
    if is_us(attempt):
        return Finding(what=what, found=f"from {attempt.own_address}", status=Status.OK)
    where = "this machine" if name == COORDINATOR else name
    span = "a port (give one by --listen HOST:PORT)" if name == COORDINATOR else "all ports"
    if ports is not None and name != COORDINATOR:
        span = f"ports {ports[0]}-{ports[1]}"
    advice = {
        Reach.FILTERED: f"a firewall is between them: let TCP in on {where}, {span}",
        Reach.REFUSED: f"a firewall refuses, or another machine is at the address of {where}",
        Reach.UNREACHABLE: f"there is no route to {where}: they need a network in common",
        Reach.UNKNOWN: f"the name of {where} is not known there",
        Reach.OPEN: f"something else answers at the address of {where}: is it in use twice?",
    }[attempt.reach]
    if name == COORDINATOR:
        advice += "; or name another way by `coordinator` in the hosts file"
    found = attempt.reach.value if not attempt.detail else f"{attempt.reach}: {attempt.detail}"
    if calls:
        advice = f"nothing: {name} calls this host instead; to have it called, {advice}"
    status = Status.LIMITED if calls else Status.BROKEN
    return Finding(what=what, found=found, status=status, advice=advice)


def _own_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
