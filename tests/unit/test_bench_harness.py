# SPDX-License-Identifier: Apache-2.0
"""The benchmark harness: it finds a difference, finds none where there is none, and leaves nobody."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from gangline.spec.event import Decision

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load(name: str) -> Any:
    """A module of the benchmarks, which are no installed package."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # msgspec resolves the annotations of a struct through its module's entry here.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


harness = load("harness")
teams = load("teams")


def noisy(mean_s: float, *, seed: int, spread: float = 0.05) -> Any:
    rng = random.Random(seed)
    return lambda: mean_s * rng.uniform(1 - spread, 1 + spread)


# --- comparing -----------------------------------------------------------------------------------


def test_faster_and_slower_contenders_are_told_with_their_intervals() -> None:
    contenders = {
        "old": noisy(1.0, seed=1),
        "fast": noisy(0.5, seed=2),
        "slow": noisy(1.25, seed=3),
        "same": noisy(1.0, seed=4),
    }
    found = harness.compare(contenders, baseline="old", repeats=15)
    assert [row.name for row in found.rows] == ["old", "old (again)", "fast", "slow", "same"]
    verdicts = {row.name: row.verdict for row in found.rows}
    assert verdicts["old"] == "baseline"
    assert verdicts["old (again)"] == "noise floor"
    assert verdicts["fast"] == "faster"
    assert verdicts["slow"] == "slower"
    assert found.row("fast").speedup.holds(2.0)
    assert found.row("slow").speedup.holds(0.8)
    assert found.row("fast").median_s == pytest.approx(0.5, rel=0.05)
    assert 0 < found.row("fast").iqr_s < 0.05
    assert found.noise.holds(1.0)


def test_no_difference_is_seen_when_a_contender_is_the_baseline() -> None:
    contenders = {"a": noisy(1.0, seed=5), "b": noisy(1.0, seed=6)}
    found = harness.compare(contenders, baseline="a", repeats=12)
    assert found.row("b").verdict == "no difference seen"


def test_drift_of_the_machine_favours_nobody() -> None:
    drift = itertools.count()
    contenders = {name: lambda: 1.0 + 0.01 * next(drift) for name in ("a", "b")}
    found = harness.compare(contenders, baseline="a", repeats=10)
    assert found.row("b").samples_s == pytest.approx(found.row("a").samples_s)
    assert found.row("b").speedup.median == pytest.approx(1.0)


def test_each_block_is_mirrored_and_the_order_varies() -> None:
    calls: list[str] = []

    def contender(name: str) -> Any:
        def run() -> float:
            calls.append(name)
            return 1.0

        return run

    names = ("a", "b", "c")
    contenders = {name: contender(name) for name in names}
    harness.compare(contenders, baseline="a", repeats=6, warmup=2, twin=contender("twin"))
    assert calls[:8] == ["a", "twin", "b", "c"] * 2
    blocks = [calls[start : start + 8] for start in range(8, len(calls), 8)]
    assert len(blocks) == 6
    assert all(block == block[::-1] and len(set(block[:4])) == 4 for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1


def test_one_slow_block_does_not_decide() -> None:
    times = iter([1.0] * 100)
    hiccup = iter([1.0] * 10 + [50.0] + [1.0] * 100)
    found = harness.compare(
        {"a": lambda: next(times), "b": lambda: next(hiccup)},
        baseline="a",
        repeats=9,
        twin=lambda: 1.0,
    )
    assert found.row("b").speedup.median == 1.0


@pytest.mark.parametrize(
    ("speedup", "noise", "verdict"),
    [
        ((1.10, 1.05, 1.15), (1.0, 0.98, 1.02), "faster"),
        ((0.90, 0.85, 0.95), (1.0, 0.98, 1.02), "slower"),
        ((1.10, 0.99, 1.20), (1.0, 0.98, 1.02), "no difference seen"),
        ((1.10, 1.05, 1.15), (1.0, 0.88, 1.12), "no difference seen"),
    ],
)
def test_difference_counts_only_when_it_is_beyond_the_noise(
    speedup: tuple[float, float, float], noise: tuple[float, float, float], verdict: str
) -> None:
    intervals = [
        harness.Interval(median=m, low=low, high=high) for m, low, high in (speedup, noise)
    ]
    assert harness.judge(intervals[0], noise=intervals[1]) == verdict


def test_wrong_baseline_and_too_few_repeats_are_refused() -> None:
    with pytest.raises(ValueError, match="baseline 'c' is none of a, b"):
        harness.compare({"a": lambda: 1.0, "b": lambda: 1.0}, baseline="c")
    with pytest.raises(ValueError, match=r"needs 2 repeats .* not 1 and 0"):
        harness.compare({"a": lambda: 1.0}, baseline="a", repeats=1, warmup=0)


def test_results_are_written_as_json_and_markdown(tmp_path: Path) -> None:
    found = harness.compare({"a": lambda: 0.002, "b": lambda: 0.001}, baseline="a", repeats=3)
    found = found.with_extra("peak memory (MB)", {"a": 100.0, "b": 105.5})
    markdown = harness.save("small", {"Two": found}, folder=tmp_path / "results")
    assert markdown == (tmp_path / "results" / "small.md").read_text()
    row = "| b | 1 ms | 0 ms | 2.000 [2.000, 2.000] | faster | 105.5 |"
    assert row in markdown.splitlines()
    for words in ("# small", "## Two", "peak memory (MB)", "torch 2", "cores", "95 %"):
        assert words in markdown
    stored = json.loads((tmp_path / "results" / "small.json").read_text())["Two"]
    assert stored == json.loads(found.to_json())
    assert stored["rows"][2]["samples_s"] == [0.001] * 3
    assert stored["rows"][1]["extras"] == {}
    assert stored["machine"]["cores"] == os.cpu_count()


# --- teams ---------------------------------------------------------------------------------------


def worker(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "worker.py"
    script.write_text(f"import os, sys, time\nsys.path.insert(0, {str(BENCHMARKS)!r})\n{body}\n")
    return [sys.executable, str(script)]


ECHO = """
from teams import serve
print("noise on standard output")
serve(lambda request: {"name": os.environ["NAME"], "got": request["value"]})
"""
NAMES = [{"NAME": "a"}, {"NAME": "b"}, {"NAME": "c"}]


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def are_gone(pids: list[int]) -> bool:
    """Whether all have ended; a killed orphan is given the moment that the kernel needs for it."""
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(is_alive(pid) for pid in pids)


def test_team_answers_in_order_and_is_gone_afterwards(tmp_path: Path) -> None:
    command = worker(tmp_path, ECHO.replace('print("noise on standard output")', ""))
    with teams.Team(command, environments=NAMES) as team:
        pids = team.pids
        for value in (1, 2):
            answers = team.ask({"value": value}, timeout_s=30)
            assert answers == [{"name": name, "got": value} for name in "abc"]
    assert not any(is_alive(pid) for pid in pids)


def test_what_a_worker_prints_is_kept_out_of_its_answers(tmp_path: Path) -> None:
    body = """
from teams import serve
def answer(request):
    print("a library says hello", flush=True)
    os.system("echo and so does a child")
    return 7
serve(answer)
"""
    assert teams.run_team(worker(tmp_path, body), environments=[{}], timeout_s=30) == [7]


def test_failure_shows_the_last_words_when_a_worker_dies(tmp_path: Path) -> None:
    body = """
from teams import serve
def answer(request):
    if os.environ["NAME"] == "b":
        raise RuntimeError("out of rope")
    time.sleep(600)
serve(answer)
"""
    began = time.monotonic()
    team = teams.Team(worker(tmp_path, body), environments=NAMES)
    pids = team.pids
    with pytest.raises(teams.TeamError, match=r"worker 1 of 3 ended with code 1") as caught:
        team.ask({}, timeout_s=60)
    assert "RuntimeError: out of rope" in str(caught.value)
    assert time.monotonic() - began < 30
    assert not any(is_alive(pid) for pid in pids)


def test_everybody_is_killed_when_the_time_runs_out(tmp_path: Path) -> None:
    body = """
import subprocess
from teams import serve
def answer(request):
    if request["hang"] and os.environ["NAME"] == "b":
        print("still here", file=sys.stderr, flush=True)
        time.sleep(600)
    return subprocess.Popen(["sleep", "600"]).pid
serve(answer)
"""
    team = teams.Team(worker(tmp_path, body), environments=NAMES[:2])
    pids = team.pids
    grandchildren = team.ask({"hang": False}, timeout_s=30)
    with pytest.raises(teams.TeamError, match=r"within 0.5 s from worker\(s\) 1 of 2") as caught:
        team.ask({"hang": True}, timeout_s=0.5)
    assert "still here" in str(caught.value)
    assert are_gone([*pids, *grandchildren])


def test_a_reply_that_will_never_come_is_not_waited_for(tmp_path: Path) -> None:
    body = """
from teams import serve
def answer(request):
    if os.environ["NAME"] == "b":
        time.sleep(600)
serve(answer)
"""
    began = time.monotonic()
    team = teams.Team(worker(tmp_path, body), environments=NAMES)
    with pytest.raises(teams.TeamError, match="worker 1 was put out"):
        team.ask({}, timeout_s=600, find_hindrance=lambda: "worker 1 was put out")
    assert time.monotonic() - began < 60


def test_who_was_put_out_of_a_measured_job_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    paced_teams = load("paced_teams")

    def decided(what: str, worker: int) -> Decision:
        return Decision(t=0.0, what=what, reason="too slow", numbers={"worker": worker})

    events = [decided("publish_view", 0), decided("exclude", 6)]
    assert paced_teams.find_put_out(events).startswith("worker 6 was put out (too slow)")
    assert paced_teams.find_put_out([*events, decided("take_back", 6)]) is None


def test_answer_that_is_no_json_is_refused(tmp_path: Path) -> None:
    command = worker(tmp_path, 'print("hello", flush=True); time.sleep(600)')
    with pytest.raises(teams.TeamError, match=r"worker 0 answered b'hello', which is not JSON"):
        teams.run_team(command, environments=[{}], timeout_s=30)


def test_workers_already_started_are_ended_when_one_cannot_be(tmp_path: Path) -> None:
    bad: dict[str, Any] = {"NAME": 3}
    with pytest.raises(TypeError):
        teams.Team(worker(tmp_path, ECHO), environments=[NAMES[0], bad])


def test_missing_command_is_refused() -> None:
    with pytest.raises(FileNotFoundError):
        teams.Team(["/nonexistent/worker"], environments=[{}])
