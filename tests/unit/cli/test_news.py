# SPDX-License-Identifier: Apache-2.0
"""What `gangline run` says of the coordinator's decisions while a job runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.cli.run.news import News
from gangline.eventlog import EventWriter, log_path
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from pathlib import Path


def test_people_hear_who_is_left_out_lost_or_back_and_nothing_else(tmp_path: Path) -> None:
    now_s = [0.0]
    news = News(tmp_path, clock=lambda: now_s[0])
    decisions = [
        ("publish_view", "2 workers joined; 2 members", {"view": 0.0, "joined": 2.0}),
        ("publish_view", "step 4: cut anew", {"view": 1.0, "step": 4.0}),
        ("plan", "one ring", {}),
        ("exclude", "step 7: it is slow", {"worker": 1.0, "step": 7.0}),
        ("publish_view", "worker 2 silent; 1 of 2 members go on", {"view": 2.0, "lost": 1.0}),
        ("publish_view", "worker 2 joined; 2 members", {"view": 3.0, "joined": 1.0}),
        ("hint", "apart is better", {"in_step": 1.0}),
    ]
    with EventWriter(log_path(tmp_path, "coordinator"), run="r", source="coordinator") as log:
        for what, reason, numbers in decisions:
            log.write(Decision(t=0.0, what=what, reason=reason, numbers=numbers))
        assert news.take() == [], "it looks now and then"
        now_s[0] += 1.0
        assert news.take() == [
            "worker 1 is left out, a spare from here on: it is slow",
            "worker 2 silent; 1 of 2 members go on",
            "worker 2 joined; 2 members",
            "hint: apart is better",
        ]
        now_s[0] += 1.0
        assert news.take() == []


def test_nothing_is_said_while_there_is_no_log(tmp_path: Path) -> None:
    now_s = [0.0]
    news = News(tmp_path, clock=lambda: now_s[0])
    now_s[0] += 1.0
    assert news.take() == []
