# SPDX-License-Identifier: Apache-2.0
"""Fault plans: what a file may say, and what is said to who wrote it wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gangline.cli.main import run_command
from gangline.engines.job import Job
from gangline.spec.cluster import Cluster
from gangline.spec.config import EmulationConfig, RunConfig
from gangline.spec.errors import UsageError
from gangline.spec.faults import KINDS, PLACES, Fault, FaultPlan

PLAN = """
[[faults]]
worker = 1
step = 12
where = "exchange"
kind = "kill"

[[faults]]
worker = 2
at_s = 30
kind = "hang"
for_s = 5

[[faults]]
worker = 1
step = 20
kind = "slow"
to = 0.25
for_steps = 10

[[faults]]
worker = 0
step = 3
where = "between"
kind = "cut"
for_s = 0.5
"""


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def test_a_plan_is_read_from_a_file(plan_file: Path) -> None:
    plan = FaultPlan.from_toml(plan_file)
    assert [fault.kind for fault in plan.faults] == ["kill", "hang", "slow", "cut"]
    assert [fault.place for fault in plan.faults] == ["exchange", "any", "forward", "between"]
    assert [fault.kind for fault in plan.of(1)] == ["kill", "slow"]
    assert plan.of(3) == ()


def test_every_kind_can_be_planned_at_every_place() -> None:
    extents = {"hang": {"for_s": 1.0}, "slow": {"to": 0.5, "for_steps": 2}, "cut": {"for_s": 1.0}}
    for kind in KINDS:
        for place in PLACES:
            fault = Fault(worker=0, kind=kind, step=0, where=place, **extents.get(kind, {}))  # type: ignore[arg-type]
            assert fault.place == place


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"worker": -1}, "a fault's worker is a number from 0 on, not -1"),
        ({"kind": "explode"}, "one of kill, hang, slow, cut, not 'explode'"),
        ({"step": None}, "the kill of worker 1 needs either a step or a time at_s, and not both"),
        ({"at_s": 1.0}, "needs either a step or a time at_s, and not both"),
        ({"step": -2}, "steps are counted from 0; there is no step -2"),
        ({"step": None, "at_s": -1.0}, "at_s is a number of seconds from 0 on, not -1.0"),
        ({"step": None, "at_s": float("nan")}, "at_s is a number of seconds from 0 on, not nan"),
        ({"step": None, "at_s": 1.0, "where": "data"}, "it cannot say where; leave out where"),
        ({"where": "lunch"}, "where is one of data, forward, backward, .*, not 'lunch'"),
        ({"for_s": 1.0}, "the kill of worker 1 knows no for_s; leave it out"),
        ({"kind": "hang"}, "the hang of worker 1 must say for_s"),
        ({"kind": "slow", "to": 0.5}, "the slow of worker 1 must say to and for_steps"),
        ({"kind": "hang", "for_s": float("inf")}, "for_s is a number of seconds .*, not inf"),
        (
            {"kind": "slow", "to": 1.5, "for_steps": 1},
            "to is a fraction .* between 0 and 1, not 1.5",
        ),
        ({"kind": "slow", "to": 0.5, "for_steps": 0}, "for_steps is at least 1, not 0"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Fault(**{"worker": 1, "kind": "kill", "step": 3, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[faults]\n", "is not usable: "),
        ('[[faults]]\nworker = 1\nkind = "kill"\nstep = 1\nwhen = 2\n', "unknown field `when`"),
        ('[[faults]]\nworker = 1\nkind = "kill"\n', r"needs either a step .* at `\$\.faults\[0\]`"),
        ('[[fault]]\nworker = 1\nkind = "kill"\nstep = 1\n', "unknown field `fault`"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        FaultPlan.from_toml(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the fault plan .*nope.toml: No such file"):
        FaultPlan.from_toml(tmp_path / "nope.toml")


def test_faults_of_workers_that_do_not_exist_are_refused(plan_file: Path) -> None:
    plan = FaultPlan.from_toml(plan_file)
    plan.check(workers=3)
    with pytest.raises(UsageError, match="hang of worker 2, and the job has 2 workers, 0 to 1"):
        plan.check(workers=2)


def test_each_worker_is_told_its_own_faults(plan_file: Path, tmp_path: Path) -> None:
    plan = FaultPlan.from_toml(plan_file)
    config = RunConfig(
        run="r",
        cluster=Cluster.of_speeds((1.0,) * 3),
        emulation=EmulationConfig(faults=plan.faults),
    )
    job = Job(config=config, run_dir=tmp_path, script=Path("t.py"))
    launches = [type(launch).from_environment(launch.to_environment()) for launch in job.launches()]
    assert [len(launch.faults) for launch in launches if launch is not None] == [1, 2, 1]
    assert launches[2] is not None
    assert launches[2].faults == plan.of(2)


def test_the_command_refuses_a_plan_for_more_workers(
    plan_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(plan_file.parent)
    Path("train.py").write_text("pass\n")
    assert run_command(["run", "--nodes", "2", "--faults", "plan.toml", "train.py"]) == 2
    assert "correct the plan, or start more workers" in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()


def test_a_plan_is_the_same_after_json(plan_file: Path) -> None:
    plan = FaultPlan.from_toml(plan_file)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=FaultPlan) == plan
