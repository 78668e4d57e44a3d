# SPDX-License-Identifier: Apache-2.0
"""A script in a pod of Kubernetes knows its job by the mounted Secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gangline.protocol.pods import find_pod
from gangline.spec.errors import UsageError
from gangline.worker.environment import find_launch
from gangline.worker.started.by_gangline import ByGangline

if TYPE_CHECKING:
    from pathlib import Path

PLACE = "digits-coordinator-0.digits:7700"


def environment(mount: Path, place: str = PLACE) -> dict[str, str]:
    return {
        "JOB_COMPLETION_INDEX": "3",
        "HOSTNAME": "digits-3",
        "GANGLINE_SECRETS": str(mount),
        "GANGLINE_COORDINATOR": place,
    }


def test_a_pod_with_the_secret_is_a_worker(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t" * 32)
    started = find_launch(environment(tmp_path))
    assert isinstance(started, ByGangline)
    found = started.launch
    assert found.run == "digits"
    assert found.coordinator == f"ws://{PLACE}"
    assert found.token_file == str(tmp_path / "token")
    assert found.worker == -1  # the coordinator gives numbers: a pod may be somebody's successor


def test_a_secret_with_certificates_means_tls(tmp_path: Path) -> None:
    for name in ("token", "tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text("x")
    found = find_pod(environment(tmp_path))
    assert found is not None
    assert found.coordinator == f"wss://{PLACE}"
    assert found.config.wire.authority == str(tmp_path / "ca.crt")


def test_an_indexed_job_without_the_secret_is_nobody_s(tmp_path: Path) -> None:
    assert find_launch(environment(tmp_path)) is None


def test_a_pod_that_does_not_know_the_coordinator_is_told_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t" * 32)
    with pytest.raises(UsageError, match="GANGLINE_COORDINATOR is 'digits'"):
        find_pod(environment(tmp_path, "digits"))
