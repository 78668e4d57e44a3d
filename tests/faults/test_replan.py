# SPDX-License-Identifier: Apache-2.0
"""A running job changes its structure, and loses nothing: not a sample, and not a member's death."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import kill
from live_jobs import LiveJob, assert_nothing_lost, report, until

from gangline.cli.main import run_command
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.protocol.status import ReplanRequest, Status
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.event import Decision, ViewAdopted
from gangline.spec.profile import ClusterProfile
from tree_members import ring

if TYPE_CHECKING:
    from elastic_jobs import Outcome

    from gangline.spec.exchange.structure import Structure

RINGS = ring(ring(0, 1), ring(2, 3))
ASKED = "somebody asked for another structure; "


def ask(live: LiveJob, structure: Structure | None) -> None:
    contact = RunContact(live.folder, token_file=live.folder / OPERATOR_TOKEN)
    contact.ask("/api/replan", body=msgspec.json.encode(ReplanRequest(structure=structure)))


def await_reported(live: LiveJob, step: int) -> None:
    """Waits until the coordinator knows of a step: the workers' logs may be behind."""

    def is_known() -> bool:
        try:
            contact = RunContact(live.folder, token_file=live.folder / OPERATOR_TOKEN)
            found = msgspec.json.decode(contact.ask("/api/status"), type=Status)
        except (LaunchError, UsageError):
            return False
        return found.step >= step

    until(is_known, f"step {step}")


def structures(outcome: Outcome) -> list[str]:
    adopted = {event.view: event.structure for event in outcome.of_kind(ViewAdopted)}
    return [adopted[view] for view in sorted(adopted)]


def test_nothing_is_lost_when_the_structure_changes_and_changes_back(tmp_path: Path) -> None:
    setup = Setup(epochs=3, wait={4: f"{ASKED}{RINGS}", 10: f"{ASKED}all in one ring"})
    with LiveJob(tmp_path, setup, workers=4) as live:
        await_reported(live, 1)
        ask(live, RINGS)
        await_reported(live, 7)
        assert run_command(["replan", str(tmp_path), "flat"]) == 0
        outcome = live.finish()
    assert outcome.exit_codes == [0] * 4, report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2, 3])
    assert structures(outcome) == ["", str(RINGS), ""]


@pytest.mark.parametrize("victim", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_others_go_on_in_the_new_structure_when_one_dies_while_it_changes(
    tmp_path: Path, victim: int
) -> None:
    setup = Setup(epochs=3, wait={4: f"{ASKED}{RINGS}"})
    live = LiveJob(tmp_path, setup, workers=4)
    config = live.job.config
    emulation = msgspec.structs.replace(config.emulation, faults=(kill(victim, 5, "regroup"),))
    config = msgspec.structs.replace(config, emulation=emulation)
    live.job = msgspec.structs.replace(live.job, config=config)
    with live:
        await_reported(live, 1)
        ask(live, RINGS)
        outcome = live.finish()
    expected = [0] * 4
    expected[victim] = -signal.SIGKILL
    assert outcome.exit_codes == expected, report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[w for w in range(4) if w != victim])
    after = {1: "ring(ring(0*), ring(2*, 3))", 2: "ring(ring(0*, 1), ring(3*))"}[victim]
    assert structures(outcome)[-1] == after


@pytest.mark.slow
def test_the_structure_stays_when_the_coordinator_is_started_again(tmp_path: Path) -> None:
    setup = Setup(epochs=3, wait={4: f"{ASKED}{RINGS}", 10: "go on"})
    with LiveJob(tmp_path, setup, workers=4) as live:
        await_reported(live, 1)
        ask(live, RINGS)
        await_reported(live, 7)
        live.kill_coordinator()
        live.restart_coordinator()
        live.await_decision("the coordinator was started again")
        live.processes[3].kill()
        live.say("go on")
        outcome = live.finish()
    assert outcome.exit_codes == [0, 0, 0, -signal.SIGKILL], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2])
    assert structures(outcome)[-1] == "ring(ring(0*, 1), ring(2*))"


@pytest.mark.slow
def test_what_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = Setup(wait={3: "go on"})
    with LiveJob(tmp_path, setup, workers=2) as live:
        await_reported(live, 1)
        assert run_command(["replan", str(tmp_path), "nowhere.json"]) == 1
        assert "does not say which nodes" in capsys.readouterr().err
        with pytest.raises(Exception, match=r"holds none of the members \[0, 1\] of this job"):
            ask(live, ring(ring(7, 8), ring(9, 5)))
        assert run_command(["replan", str(tmp_path), "flat"]) == 0
        until(
            lambda: [
                e for e in live.events() if isinstance(e, Decision) and e.what == "keep_structure"
            ],
            "a decision",
        )
        live.say("go on")
        outcome = live.finish()
    assert outcome.exit_codes == [0, 0], report(outcome)


def test_a_running_job_measures_its_own_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = Setup(wait={3: "go on"})
    with LiveJob(tmp_path, setup, workers=3) as live:
        await_reported(live, 1)
        path = tmp_path / "profile.json"
        assert run_command(["probe", "--output", str(path), str(tmp_path)]) == 0
        live.say("go on")
        outcome = live.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    profile = ClusterProfile.from_file(path)
    assert [node.name for node in profile.nodes] == ["worker 0", "worker 1", "worker 2"]
    assert len(profile.pairs) == 3, "one pair of the host was measured, and stands for all"
    assert profile.pairs[0].there.bytes_per_s > 1e6
    assert f"profile: {path}" in capsys.readouterr().out.replace("\n", "")
