# SPDX-License-Identifier: Apache-2.0
"""Workers join a running job and leave it politely: nothing is lost, and the others keep training."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from elastic_bodies import Setup
from live_jobs import LiveJob, assert_nothing_lost, report, until

from cases import quick_of
from gangline.cli.main import run_command
from gangline.cli.run import cmd_join
from gangline.files.announcement import Announcement
from gangline.launch.joining.contact import Contact
from gangline.spec.event import Decision, Regrouped, ViewAdopted
from gangline.worker.line.refinding import coordinator_of


def views(outcome: Any) -> list[ViewAdopted]:
    return [event for event in outcome.events if isinstance(event, ViewAdopted)]


def test_a_worker_joins_in_the_middle(tmp_path: Path) -> None:
    setup = Setup(epochs=12, allocation="balanced", wait={40: "worker 2 joined"})
    with LiveJob(tmp_path, setup) as job:
        job.await_step(10)
        job.join()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2])
    joined = next(view for view in views(outcome) if 2 in view.members)
    assert joined.members == [0, 1, 2]
    assert joined.shares[2] <= min(joined.shares[:2]), "it begins with a small share"
    assert joined.shares[2] < max(joined.shares[:2])
    assert joined.reason == "worker 2 joined, taken to be slow until measured; 3 members"
    assert outcome.steps_of(2) == set(range(joined.step, setup.steps))


@pytest.mark.slow
def test_two_workers_join(tmp_path: Path) -> None:
    setup = Setup(epochs=14, wait={40: "worker 2 joined", 60: "worker 3 joined"})
    with LiveJob(tmp_path, setup) as job:
        job.await_step(10)
        job.join()
        job.await_decision("worker 2 joined")
        job.join()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2, 3])


def test_a_job_is_founded_by_workers_that_join(tmp_path: Path) -> None:
    setup = Setup(epochs=4)
    with LiveJob(tmp_path, setup, is_joined=True) as job:
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1])
    assert views(outcome)[0].members == [0, 1]


@pytest.mark.slow
def test_a_worker_that_comes_early_waits_for_the_founders(tmp_path: Path) -> None:
    setup = Setup(epochs=10, wait={20: "worker 2 joined"})
    with LiveJob(tmp_path, setup) as job:
        job.join()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2])
    assert views(outcome)[0].members == [0, 1], "the founders have the numbers that they brought"


def test_the_others_go_on_when_a_joiner_is_killed_while_joining(tmp_path: Path) -> None:
    setup = Setup(epochs=12, wait={40: "worker 2 joined", 41: "go on"})
    with LiveJob(tmp_path, setup) as job:
        job.await_step(10)
        process = job.join()
        job.await_decision("worker 2 joined")
        os.kill(process.pid, signal.SIGKILL)
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, -signal.SIGKILL], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1])


def test_a_joiner_that_comes_after_the_end_is_told_so(tmp_path: Path) -> None:
    setup = Setup(epochs=1)
    with LiveJob(tmp_path, setup) as job:
        for process in job.processes:
            process.join()
        until(lambda: b'"ended"' in (tmp_path / "journal.jsonl").read_bytes(), "the end")
        job.join()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 1]
    assert "the job is over, its workers have ended" in outcome.outputs[2]


@pytest.mark.parametrize(
    ("leaver", "num_workers"),
    quick_of(
        [(0, 0), (2, 0), (1, 1)],
        quick=[(2, 0)],
    ),
)
def test_a_worker_leaves_politely_on_a_signal(
    tmp_path: Path, leaver: int, num_workers: int
) -> None:
    # They hold until it was asked to leave, and leave it so many steps to do so.
    wait = {6: "file asked", 60: f"worker {leaver} left"}
    setup = Setup(epochs=14, num_workers=num_workers, wait=wait, think_s=0.02)
    with LiveJob(tmp_path, setup, workers=3) as job:
        job.await_step(5)
        os.kill(job.processes[leaver].pid, signal.SIGTERM)
        (tmp_path / "asked").touch()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    others = [one for one in range(3) if one != leaver]
    assert_nothing_lost(outcome, setup, finishers=others)
    (said,) = [e for e in outcome.events if isinstance(e, Decision) and e.what == "leave"]
    assert f"worker {leaver} left before step" in said.reason
    assert "SIGTERM" in said.reason
    places = [outcome.results[one]["place"] for one in (*others, leaver)]
    assert places == [(0, 2), (1, 2), (2, 2)], "who has left is behind all"
    step = int(said.numbers["step"] or 0)
    assert max(outcome.steps_of(leaver)) == step - 1
    regroups = [event for event in outcome.events if isinstance(event, Regrouped)]
    assert {event.num_behind for event in regroups} == {0}, "planned: nobody had to copy anything"


def test_a_worker_that_is_interrupted_ends_and_the_others_go_on(tmp_path: Path) -> None:
    setup = Setup(epochs=14, wait={6: "file asked"}, think_s=0.02)
    with LiveJob(tmp_path, setup, workers=3) as job:
        job.await_step(5)
        os.kill(job.processes[2].pid, signal.SIGINT)
        (tmp_path / "asked").touch()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 1], report(outcome)
    assert "KeyboardInterrupt" in outcome.outputs[2]
    assert_nothing_lost(outcome, setup, finishers=[0, 1])


@pytest.mark.slow
def test_a_worker_leaves_whose_loop_fetches_from_an_endless_generator(tmp_path: Path) -> None:
    """An epoch has six steps: now and then it leaves with the first step of one."""
    wait = {6: "file asked", 60: "worker 1 left"}
    setup = Setup(loop="fetches_between", epochs=14, wait=wait, think_s=0.02)
    with LiveJob(tmp_path, setup, workers=3) as job:
        job.await_step(5)
        os.kill(job.processes[1].pid, signal.SIGTERM)
        (tmp_path / "asked").touch()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 2])


def test_an_operator_takes_a_worker_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup = Setup(epochs=14, wait={60: "worker 1 left"})
    with LiveJob(tmp_path, setup, workers=3) as job:
        job.await_step(5)
        assert run_command(["leave", str(tmp_path), "--worker", "7"]) == 1
        assert (
            "worker 7 does not take part in this job; who does: 0, 1, 2" in capsys.readouterr().err
        )
        assert run_command(["leave", str(tmp_path), "--worker", "1"]) == 0
        assert "worker 1 leaves live after its present step" in capsys.readouterr().out
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 2])


def test_the_job_just_ends_when_everybody_leaves(tmp_path: Path) -> None:
    setup = Setup(epochs=100_000)
    with LiveJob(tmp_path, setup, workers=3) as job:
        job.await_step(5)
        for process in job.processes:
            os.kill(process.pid, signal.SIGTERM)
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert outcome.ledger.contradictions == ()
    assert not outcome.ledger.problems(length=setup.samples, epochs=outcome.ledger.num_epochs - 1)


def test_join_names_the_token_when_it_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print('never run')\n")
    wrong = tmp_path / "wrong"
    wrong.write_text("x" * 40)
    wrong.chmod(0o600)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    setup = Setup(epochs=1)
    with LiveJob(run_dir, setup) as job:
        job.await_step(0)
        address = job.job.coordinator or (run_dir / "coordinator.json").read_text()
        port = address.split(":")[-2].split('"')[0]
        command = ["join", f"127.0.0.1:{port}", "--token-file", str(wrong)]
        assert run_command([*command, str(tmp_path / "train.py")]) == 1
        job.finish()
    shown = capsys.readouterr().err
    assert "does not know the token in" in shown
    assert "is it the token of this run?" in shown


def test_join_keeps_its_flags_apart_from_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    launched: list[Any] = []
    monkeypatch.setattr(Contact, "ask", lambda *_, **__: b'{"run":"digits","files":[]}')
    monkeypatch.setattr(cmd_join, "launch", lambda job, **_: launched.append(job))
    flags = ["--token-file", "t", "--workers=2", "--speed", "0.5", "-o"]
    own = ["train.py", "--workers", "9", "x"]
    assert run_command(["join", "10.0.0.5:77", *flags, *own]) == 0
    (job,) = launched
    assert job.run == "digits"
    assert job.coordinator == "ws://10.0.0.5:77"
    assert job.token_file == tmp_path / "t"
    assert job.speeds == (0.5, 0.5)
    assert job.arguments == ("--workers", "9", "x")
    assert job.run_dir.parent == tmp_path / "runs"
    assert job.run_dir.name.startswith("join-")
    assert [(one.worker, one.workers, one.coordinator) for one in job.launches()] == [
        (-1, 0, "ws://10.0.0.5:77")
    ] * 2


@pytest.mark.parametrize("is_by_folder", [True, False])
def test_join_finds_the_coordinator_again_where_its_folder_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_by_folder: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "job"
    folder.mkdir()
    Announcement(run="digits", url="ws://0.0.0.0:77", pid=1).write(folder)
    launched: list[Any] = []
    monkeypatch.setattr(Contact, "ask", lambda *_, **__: b'{"run":"digits","files":[]}')
    monkeypatch.setattr(cmd_join, "launch", lambda job, **_: launched.append(job))
    place = ["job"] if is_by_folder else ["10.0.0.5:77", "--token-file", "job/token"]
    assert run_command(["join", *place, "--max-away", "7", "-m", "timeit", "--help"]) == 0
    (job,) = launched
    assert (job.module, job.arguments) == ("timeit", ("--help",))
    assert job.token_file == folder / "token"
    (launch,) = job.launches()
    assert launch.config.survival.max_away_s == 7
    host = "0.0.0.0" if is_by_folder else "10.0.0.5"
    assert coordinator_of(launch) == f"ws://{host}:77"
    Announcement(run="digits", url="ws://0.0.0.0:88", pid=2).write(folder)
    assert coordinator_of(launch) == f"ws://{host}:88"
    Announcement(run="another", url="ws://0.0.0.0:99", pid=3).write(folder)
    assert coordinator_of(launch) == f"ws://{host}:77", "another job uses the folder now"


@pytest.mark.parametrize("address", ["somewhere", "host:", ":80", "host:99999", "host:port"])
def test_join_says_how_an_address_is_written(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["join", address, "--token-file", "t", "train.py"]) == 2
    assert "write HOST:PORT, as `gangline up` prints it" in capsys.readouterr().err
