# SPDX-License-Identifier: Apache-2.0
"""A job that goes on for long, while workers join, leave and are killed and the coordinator is flooded.

    make soak                   ten minutes
    make soak SOAK_S=7200       the proof of two hours

GANGLINE_SOAK_S says for how long (120 seconds where nobody says), GANGLINE_SOAK_PAUSE_S how long to
rest between two rounds of torment; with GANGLINE_SOAK_GENTLE=1 a worker rests in every step, for
machines that others use. What the processes held is printed at the end (`pytest -s`).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from elastic_bodies import Setup
from live_jobs import LiveJob, until

from gangline.files.announcement import read_announcement
from gangline.files.tokens import OBSERVER_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.protocol.status import Status
from gangline.testing.flooding import Plan, flood

SOAK_S = float(os.environ.get("GANGLINE_SOAK_S", "120"))
SLOW_WORKER = 0 if os.environ.get("GANGLINE_SOAK_GENTLE") else None
PAUSE_S = float(os.environ.get("GANGLINE_SOAK_PAUSE_S", "2"))


class Held(NamedTuple):
    """What a process holds."""

    rss_bytes: int
    descriptors: int
    threads: int
    shared: int
    """Mappings of shared memory."""


def held_by(pid: int) -> Held:
    process = psutil.Process(pid)
    maps = Path(f"/proc/{pid}/maps").read_text()
    shared = sum("/dev/shm" in line or "memfd:" in line for line in maps.splitlines())
    return Held(process.memory_info().rss, process.num_fds(), process.num_threads(), shared)


def members(folder: Path) -> tuple[int, ...]:
    contact = RunContact(folder, token_file=folder / OBSERVER_TOKEN)
    view = msgspec.json.decode(contact.ask("/api/status"), type=Status).view
    return () if view is None else view.members


def await_members(folder: Path, count: int) -> None:
    until(lambda: len(members(folder)) == count, f"{count} members")


def torment(job: LiveJob, folder: Path, rng: random.Random) -> None:
    """One newcomer comes, and goes in one of two ways, under attack or not."""
    before = len(members(folder))
    newcomer: Any = job.join()
    await_members(folder, before + 1)
    if rng.random() < 0.5:
        with flood(Plan(url=read_announcement(folder).url, slow=20, rate_per_s=50)):
            time.sleep(1.0)
    os.kill(newcomer.pid, rng.choice([signal.SIGKILL, signal.SIGTERM]))
    newcomer.join()
    await_members(folder, before)


@pytest.mark.slow
@pytest.mark.timeout(SOAK_S + 180)
def test_nothing_grows(tmp_path: Path) -> None:
    rng = random.Random(0)
    samples: dict[str, list[Held]] = {"coordinator": [], "survivor": []}
    with LiveJob(tmp_path, Setup(epochs=10_000_000, slow_worker=SLOW_WORKER), workers=2) as job:
        job.await_step(5)
        ends_s = time.monotonic() + SOAK_S
        while time.monotonic() < ends_s:
            torment(job, tmp_path, rng)
            time.sleep(PAUSE_S)
            samples["coordinator"].append(held_by(job.coordinator.pid))
            samples["survivor"].append(held_by(job.processes[0].pid))
        for process in job.processes[:2]:
            assert process.is_alive()
            os.kill(process.pid, signal.SIGTERM)
        for process in job.processes[:2]:
            process.join(30)
            assert process.exitcode == 0
    sys.stdout.write("\n" + "\n".join(figures(name, held) for name, held in samples.items()) + "\n")
    for name, held in samples.items():
        assert_steady(name, held)


def figures(name: str, held: list[Held]) -> str:
    """What a process held after the first round and at the end, and the most in between."""
    first, last = held[0], held[-1]
    most = Held(*(max(column) for column in zip(*held, strict=True)))
    parts = [
        f"{field} {getattr(first, field)} -> {getattr(last, field)} (most {getattr(most, field)})"
        for field in Held._fields
    ]
    return f"{name}, {len(held)} rounds in {SOAK_S:.0f} s: {', '.join(parts)}"


def assert_steady(name: str, held: list[Held]) -> None:
    """The last third holds no more than the second, but for noise."""
    third = len(held) // 3
    assert third >= 1, "the soak was too short to say anything"
    early, late = held[third : 2 * third], held[2 * third :]
    text = f"{name}: {early[0]} … {late[-1]} in {len(held)} rounds"
    for field in ("descriptors", "threads", "shared"):
        grown = median(getattr(one, field) for one in late) - median(
            getattr(one, field) for one in early
        )
        assert grown <= 2, f"{field} of the {text}"
    grown_bytes = median(one.rss_bytes for one in late) - median(one.rss_bytes for one in early)
    assert grown_bytes < 20e6, f"memory of the {text}"
