# SPDX-License-Identifier: Apache-2.0
"""The line of progress: where the job is, how fast and how well it goes, and what is left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.cli.output import printable
from gangline.observe.live.follower import RunFollower
from gangline.observe.live.standing import LiveRun

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.observe.live.standing import Standing

_MAX_NAMED = 8
"""Of more workers only the numbers are told."""
_MAX_VALUES = 3
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


class LiveFeed:
    """Follows the logs of a run, and has the newest line."""

    def __init__(self, run_dir: Path) -> None:
        self._follower = RunFollower(run_dir)
        self._run = LiveRun()
        self.stage = "starting"
        """What is shown before the first step."""

    def refresh(self) -> None:
        """Reads what was written since the last time."""
        for event in self._follower.take():
            self._run.note(event)
        self._run.curves.take()  # what is complete need not be kept

    def line(self) -> str:
        """The line."""
        standing = self._run.standing()
        return self.stage if standing is None else describe(standing)


def describe(now: Standing) -> str:
    """Epoch, pace, efficiency, what the script logs, who takes part, time left, last decision."""
    of = f"/{now.epochs}" if now.epochs else ""
    parts = [f"epoch {now.epoch + bool(of)}{of}", f"step {now.step}"]
    if now.is_paused:
        parts.append("paused")
    if now.samples_per_s is not None:
        parts.append(f"{now.samples_per_s:,.0f} samples/s")
    if now.efficiency is not None:
        parts.append(f"{now.efficiency:.0%} efficient")
    parts += [f"{name} {_number(value)}" for name, value in _first(now.logged)]
    parts.append(_workers(now))
    if now.left_s is not None:
        parts.append(f"{duration(now.left_s)} left")
    if now.decision:
        age_s = max(0.0, now.t - now.decided_t)
        parts.append(f"{duration(age_s)} ago: {printable(now.decision)}")
    return "  ".join(part for part in parts if part)


def _first(logged: dict[str, float | None]) -> list[tuple[str, float | None]]:
    """The loss before anything else."""
    ordered = sorted(logged.items(), key=lambda item: "loss" not in item[0])
    return ordered[:_MAX_VALUES]


def _number(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4g}"


def _workers(now: Standing) -> str:
    """Who is in and, where somebody is, who is out."""
    count, total = len(now.members), len(now.members) + len(now.out)
    if not count:
        return ""
    teams = f" in {now.num_teams} teams" if now.num_teams > 1 else ""
    if not now.out:
        return f"{count} worker{'s' if count > 1 else ''}{teams}"
    if total > _MAX_NAMED:
        return f"{count} of {total} workers{teams}"
    inside, outside = (", ".join(map(str, some)) for some in (now.members, now.out))
    return f"in: {inside}{teams}  out: {outside}"


def duration(seconds: float) -> str:
    """A time span in at most two units."""
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"
