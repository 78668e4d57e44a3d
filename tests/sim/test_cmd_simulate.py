# SPDX-License-Identifier: Apache-2.0
"""`gangline simulate`."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from gangline.cli.main import run_command
from gangline.cli.simulate import cmd_simulate
from gangline.cli.simulate.replayed import decision_lines
from gangline.eventlog import read_run
from gangline.spec.errors import UsageError
from gangline.spec.event import LogOpened, RunEnded, StepDone

FILE = "".join(f'[[nodes]]\nname = "n{i}"\nspeed = {s}\n' for i, s in enumerate((1, 0.5, 0.2, 0.1)))


@pytest.fixture
def invoke(tmp_path):
    app = typer.Typer()
    app.callback()(lambda: None)
    cmd_simulate.register(app)
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)

    def call(*arguments):
        result = CliRunner().invoke(
            app, ["simulate", "--cluster", str(path), "--steps", "40", *arguments]
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_it_says_what_happened_and_why(invoke):
    text = invoke("--global-batch", "256")
    assert "40 steps of 4 workers, global batch 256, balanced" in text
    assert "efficiency 0." in text
    assert "64 64 64 64" in text
    assert "cut anew" in " ".join(text.split())


def test_it_prints_one_document_with_json(invoke):
    answer = json.loads(invoke("--json", "--seed", "5", "--allocation", "random"))
    assert answer["workers"] == 4
    assert answer["global_batch"] == 256
    assert answer["seed"] == 5
    assert answer["allocation"] == "random"
    assert answer["log"] is None
    assert 0 < answer["efficiency"] < 1
    assert answer["efficiency"] == pytest.approx(answer["optimum_s"] / answer["step_s"])
    assert sum(answer["views"][0]["shares"]) == 256


def test_it_is_repeatable(invoke):
    assert invoke("--json") == invoke("--json")
    assert invoke("--json") != invoke("--json", "--seed", "1")


def test_it_writes_a_log_that_can_be_read(invoke, tmp_path):
    run_dir = tmp_path / "run"
    text = invoke("--run-dir", str(run_dir))
    events = list(read_run(run_dir))
    assert "simulator.jsonl" in text
    assert isinstance(events[0], LogOpened)
    assert (events[0].source, events[0].run, events[0].t) == ("simulator", "cluster", 0.0)
    assert isinstance(events[-1], RunEnded)
    assert sum(isinstance(event, StepDone) for event in events) == 160


def test_a_log_is_not_written_over(invoke, tmp_path):
    invoke("--run-dir", str(tmp_path / "run"))
    with pytest.raises(UsageError, match=r"there is a log already: .*; give another --run-dir"):
        invoke("--run-dir", str(tmp_path / "run"))


def test_many_shares_are_cut_short(invoke, tmp_path):
    path = tmp_path / "many.toml"
    path.write_text('[[nodes]]\nname = "rack"\nworkers = 12\n')
    assert "64 64 64 64 64 64 64 64 …" in invoke("--cluster", str(path))


def test_nonsense_is_refused(invoke):
    with pytest.raises(UsageError, match="global_batch must be at least 1, not 0"):
        invoke("--global-batch", "0")
    with pytest.raises(UsageError, match="no allocation 'best'"):
        invoke("--allocation", "best")


PLAN = """
[[faults]]
worker = 1
step = 10
kind = "kill"

[[faults]]
worker = 2
step = 99
kind = "cut"
for_s = 1.0
"""


def test_it_says_what_was_survived(invoke, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    text = invoke("--faults", str(plan), "--samples", "3000")
    assert "survived 1 fault (kill of worker 1 in step 10): 0 samples lost, 0 used twice" in text
    assert "the group recovered in 0." in text
    assert "not reached: 1 fault (cut of worker 2 in step 99)" in text
    answer = json.loads(invoke("--faults", str(plan), "--respawn", "--json"))
    assert answer["survival"]["samples_lost"] == 0
    assert [fault["kind"] for fault in answer["survival"]["unreached"]] == ["cut"]
    assert answer["views"][-1]["members"] == [0, 2, 3]


def test_it_fails_when_the_faults_leave_nobody(tmp_path, capsys):
    (tmp_path / "c.toml").write_text('[[nodes]]\nname = "one"\n')
    (tmp_path / "p.toml").write_text('[[faults]]\nworker = 0\nstep = 3\nkind = "kill"\n')
    arguments = ["--cluster", str(tmp_path / "c.toml"), "--faults", str(tmp_path / "p.toml")]
    assert run_command(["simulate", *arguments]) == 1
    assert "the run ended early: no worker is left" in capsys.readouterr().out


def test_a_plan_for_more_workers_is_refused(invoke, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('[[faults]]\nworker = 7\nstep = 3\nkind = "kill"\n')
    with pytest.raises(UsageError, match="the job has 4 workers, 0 to 3: correct the plan"):
        invoke("--faults", str(plan))


SITES = """
model_bytes = 250e3
sync = "flexible"

[[nodes]]
name = "lab"
workers = 2
group = "lab"

[[nodes]]
name = "home"
speed = 0.5

[[links]]
between = ["lab", "home"]
bytes_per_s = 2.5e6
"""


@pytest.fixture
def sites(invoke, tmp_path):
    path = tmp_path / "sites.toml"
    path.write_text(SITES)
    extent = ("--cluster", str(path), "--samples", "4000", "--epochs", "2")
    return lambda *arguments: invoke(*extent, *arguments)


def test_it_simulates_teams_when_the_file_says_so(sites):
    text = sites()
    assert "3 workers in 2 teams, held together by flexible" in text
    assert "time per epoch: " in text
    assert "merges, " in text
    assert "MB over limited links" in text
    assert "a team waited " in text


def test_modes_can_be_compared(sites):
    full = json.loads(sites("--json", "--sync", "full", "--everybody"))
    none = json.loads(sites("--json", "--sync", "none"))
    assert len(full["epoch_s"]) == len(none["epoch_s"]) == 2
    assert sum(full["epoch_s"]) > 2 * sum(none["epoch_s"])
    assert full["link_bytes"] > 10 * none["link_bytes"] > 0
    assert full["idle_s"] > none["idle_s"]
    assert none["rounds"] == 2
    assert none["samples_per_s"] > 2 * full["samples_per_s"]
    assert "over limited links; a worker did not compute for" in sites("--sync", "full")


def test_parameter_servers_are_simulated(sites):
    answer = json.loads(sites("--json", "--sync", "asp(servers=2)"))
    assert answer["sync"] == "asp(servers=2)"
    assert answer["survival"]["samples_lost"] == answer["survival"]["samples_repeated"] == 0
    assert answer["link_bytes"] > 0


def test_the_ledger_proves_what_happened_to_a_team(sites, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('[[faults]]\nworker = 2\nstep = 5\nkind = "kill"\n')
    answer = json.loads(sites("--faults", str(plan), "--json"))
    assert answer["survival"]["samples_lost"] == answer["survival"]["samples_repeated"] == 0
    assert [fault["kind"] for fault in answer["survival"]["fired"]] == ["kill"]
    text = sites("--faults", str(plan), "--run-dir", str(tmp_path / "run"))
    assert "survived 1 fault (kill of worker 2 in step 5): 0 samples lost, 0 used twice" in text
    events = list(read_run(tmp_path / "run"))
    assert {event.team for event in events if isinstance(event, StepDone)} == {0, 1}


def test_auto_and_workers_that_are_started_again_are_simulated(sites, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('[[faults]]\nworker = 1\nstep = 5\nkind = "kill"\n')
    auto = json.loads(sites("--sync", "auto", "--json"))
    assert auto["sync"] == "auto"
    assert auto["teams"] > 1, "`auto` parts the sites as soon as it knows their paces"
    extent = ("--samples", "60000", "--epochs", "1")
    text = sites(*extent, "--faults", str(plan), "--respawn", "--run-dir", str(tmp_path / "run"))
    assert "0 samples lost, 0 used twice" in text
    steps = [event for event in read_run(tmp_path / "run") if isinstance(event, StepDone)]
    assert {event.worker for event in steps} == {0, 1, 2, 3}


def test_epochs_without_samples_are_refused(invoke):
    with pytest.raises(UsageError, match="--epochs counts epochs of --samples each: give both"):
        invoke("--epochs", "2")


@pytest.mark.parametrize(
    ("count", "begin"), [(10, "decided: 0"), (12, "the last 10 of 12 decisions")]
)
def test_a_replay_says_how_many_decisions_are_not_shown(count: int, begin: str) -> None:
    lines = decision_lines([str(number) for number in range(count)])
    assert lines[0].startswith(begin)
    assert lines[-1] == f"decided: {count - 1}"
    assert sum(line.startswith("decided: ") for line in lines) == 10


def test_options_that_would_change_nothing_of_a_replay_are_refused(tmp_path, capsys):
    assert run_command(["simulate", "--replay", str(tmp_path), "--steps", "5", "--json"]) == 2
    assert "--steps would change nothing" in capsys.readouterr().out
