# SPDX-License-Identifier: Apache-2.0
"""What the coordinator decides that people should hear at once: who is left out, lost, or back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gangline.eventlog import log_path, tail_events
from gangline.spec.errors import LogError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_INTERVAL_S = 0.25
_SAID_AS = {
    "exclude": "worker {} is left out, a spare from here on: ",
    "take_back": "",
    "hint": "hint: ",
    "choose_sync": "auto: ",
    "keep_sync": "auto: ",
    "lose_team": "",
    "refuse_logs": "",
    "take_logs": "",
}
"""What is said, and what comes before its reason."""


class News:
    """Follows the coordinator's event log."""

    def __init__(self, run_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = log_path(run_dir, "coordinator")
        self._clock = clock
        self._offset = 0
        self._read_s = clock()

    def take(self) -> list[str]:
        """The lines that are new, when it is time to look."""
        now_s = self._clock()
        if now_s - self._read_s < _INTERVAL_S:
            return []
        self._read_s = now_s
        try:
            events, self._offset = tail_events(self._path, self._offset)
        except LogError:
            return []
        lines = [_line(event) for event in events if isinstance(event, Decision)]
        return [line for line in lines if line]


def _line(decision: Decision) -> str:
    numbers, reason = decision.numbers, decision.reason
    if decision.what == "publish_view":
        has_joined = "joined" in numbers and (numbers.get("view") or 0) > 0
        return reason if "lost" in numbers or "left" in numbers or has_joined else ""
    before = _SAID_AS.get(decision.what)
    if before is None:
        return ""
    step = f"step {numbers.get('step') or 0:.0f}: "
    return before.format(int(numbers.get("worker") or 0)) + reason.removeprefix(step)
