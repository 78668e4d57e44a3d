# SPDX-License-Identifier: Apache-2.0
"""Scripts of well-known kinds train the same model by gangline as they do without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import script_jobs
from script_jobs import differences, plain

from cases import quick_of
from gangline.spec.faults import Fault

KILLS = {
    "dcgan": Fault(worker=1, kind="kill", step=6, where="update"),
    "early_stopping": Fault(worker=0, kind="kill", step=9, where="exchange"),
    "gcn": Fault(worker=2, kind="kill", step=7, where="backward"),
    "hf_trainer": Fault(worker=1, kind="kill", step=7, where="exchange"),
    "imagenet": Fault(worker=0, kind="kill", step=7, where="forward"),
    "lightning_style": Fault(worker=2, kind="kill", step=8, where="exchange"),
    "mnist": Fault(worker=1, kind="kill", step=8, where="exchange"),
    "nanogpt": Fault(worker=2, kind="kill", step=8, where="exchange"),
    "prefetcher": Fault(worker=1, kind="kill", step=9, where="exchange"),
    "reinforce": Fault(worker=0, kind="kill", step=5, where="exchange"),
    "schedules": Fault(worker=0, kind="kill", step=10, where="update"),
    "siamese": Fault(worker=2, kind="kill", step=11, where="between"),
    "vae": Fault(worker=1, kind="kill", step=9, where="exchange"),
    "word_language_model": Fault(worker=0, kind="kill", step=13, where="exchange"),
}
"""Every script, and who is killed where in the middle of it."""
QUICK_TORCHRUN = {"gcn", "prefetcher"}
QUICK_KILLS = {"dcgan", "lightning_style", "nanogpt", "prefetcher", "reinforce", "schedules"}
"""What `make test` runs: the others lose and find each other in the same ways."""
QUICK_TOGETHER = KILLS.keys() - QUICK_KILLS
"""So each script is trained by three workers, and some of them lose one of these."""
QUICK_ALONE = {*QUICK_KILLS, "early_stopping", "hf_trainer", "mnist"}


@pytest.mark.parametrize("script", quick_of(KILLS, quick=QUICK_ALONE))
def test_a_job_of_one_is_the_plain_script(script: str, tmp_path: Path) -> None:
    assert not differences(script_jobs.alone(script, tmp_path), plain(script))


@pytest.mark.parametrize("script", quick_of(KILLS, quick=QUICK_TOGETHER))
def test_three_workers_with_changing_shares_are_the_plain_script(
    script: str, tmp_path: Path
) -> None:
    assert not differences(script_jobs.together(script, tmp_path), plain(script))


@pytest.mark.parametrize("script", quick_of(KILLS, quick=QUICK_TORCHRUN))
def test_two_workers_of_torchrun_are_the_plain_script(script: str, tmp_path: Path) -> None:
    assert not differences(script_jobs.under_torchrun(script, tmp_path), plain(script))


@pytest.mark.parametrize("script", quick_of(KILLS, quick=QUICK_KILLS))
def test_a_worker_that_is_killed_changes_nothing(script: str, tmp_path: Path) -> None:
    found = script_jobs.together(script, tmp_path, faults=[KILLS[script]])
    expected = dict(plain(script))
    for result in (found, expected):
        result.pop("shown", None)  # what a loop sums up itself lacks what the lost worker had
    assert not differences(found, expected)
