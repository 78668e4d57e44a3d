# SPDX-License-Identifier: Apache-2.0
"""A coordinator is attacked while a job trains: the job ends, and nothing about it is different."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from elastic_bodies import Setup
from live_jobs import LiveJob, report

from gangline.files.announcement import read_announcement
from gangline.spec.event import Decision
from gangline.testing.flooding import Plan, flood

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

SETUP = Setup(epochs=60)


def train(folder: Path, plan: Plan | None) -> tuple[Outcome, dict[str, int]]:
    """A job of two workers, attacked from its fifth step on; who attacks may use its token."""
    folder.mkdir()
    counts: dict[str, int] = {}
    with LiveJob(folder, SETUP) as job:
        job.await_step(5)
        if plan is None:
            return job.finish(), counts
        token = job.token if plan.token == "the run's" else plan.token
        aimed = Plan(
            url=read_announcement(folder).url,
            rate_per_s=plan.rate_per_s,
            slow=plan.slow,
            token=token,
        )
        with flood(aimed) as counts:
            outcome = job.finish()
        assert job.coordinator.is_alive()
    return outcome, counts


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome, _ = train(tmp_path_factory.mktemp("quiet") / "run", None)
    assert outcome.exit_codes == [0, 0], report(outcome)
    return outcome


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        pytest.param(Plan(url=""), "guess", id="strangers"),
        pytest.param(
            Plan(url="", token="the run's", slow=5, rate_per_s=60),
            "rave",
            id="rubbish-with-a-token",
        ),
    ],
)
def test_training_is_bit_equal_under_attack(
    tmp_path: Path, undisturbed: Outcome, plan: Plan, kind: str
) -> None:
    outcome, counts = train(tmp_path / "run", plan)
    assert outcome.exit_codes == [0, 0], report(outcome)
    assert counts.get(kind, 0) > 0, counts
    outcome.ledger.check(length=SETUP.samples, epochs=SETUP.epochs)
    for worker in (0, 1):
        for name, value in undisturbed.results[worker]["state"].items():
            assert torch.equal(outcome.results[worker]["state"][name], value), name
    decisions = [event for event in outcome.events if isinstance(event, Decision)]
    assert [one for one in decisions if "go on" in one.reason] == [], "nobody was taken to be lost"
