# SPDX-License-Identifier: Apache-2.0
"""What `gangline simulate` says of groups that train at their own pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.cli.simulate.survival import Survival
from gangline.observe.report import counted

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.control import ControlOptions
    from gangline.simulation import TeamsResult
    from gangline.spec.sync import Sync


class TeamsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `gangline simulate --sync … --json` prints."""

    sync: str
    workers: int
    teams: int
    samples: int
    """Of each epoch."""
    global_batch: int
    seed: int
    wall_s: float
    """Virtual seconds."""
    epoch_s: list[float]
    samples_per_s: float
    rounds: int
    """Merges of all teams, the one at the end of each epoch included."""
    updates: int
    """Of parameter servers."""
    staleness: float
    """Of an update, on average."""
    dropped: int
    """Pushes that came too late for their round."""
    interval_s: float
    """`flexible`: the time from one merge to the next, at the end."""
    link_bytes: float
    """What was sent over limited links."""
    waited_s: float
    """What a team has waited for others, on average."""
    idle_s: float
    """For how long a worker did not compute, on average."""
    survival: Survival
    problem: str | None
    log: str | None

    def sentences(self) -> list[str]:
        """What people are told."""
        epochs = ", ".join(f"{seconds:.2f}" for seconds in self.epoch_s)
        if self.problem is not None and not self.epoch_s:
            return []  # it never began, or came to nothing
        return [
            f"{self.workers} workers in {self.teams} teams, held together by {self.sync}: "
            f"{self.wall_s:.3f} s of virtual time, {self.samples_per_s:.0f} samples/s",
            f"time per epoch: {epochs} s",
            f"{counted(self.rounds, 'merge', 'merges')}, "
            f"{say_bytes(self.link_bytes)} over limited links",
            *self._of_servers(),
            f"a team waited {self.waited_s:.2f} s for others on average; a worker did not compute "
            f"for {self.idle_s:.2f} s",
            *self.survival.sentences(),
        ]

    def _of_servers(self) -> list[str]:
        if not self.updates:
            return []
        return [
            f"{counted(self.updates, 'update', 'updates')} by parameter servers, with a staleness of "
            f"{self.staleness:.1f} on average; {counted(self.dropped, 'push', 'pushes')} came too late"
        ]


def summarize(
    result: TeamsResult,
    sync: Sync,
    *,
    samples: int,
    options: ControlOptions,
    survival: Survival,
    log: Path | None,
) -> TeamsSummary:
    """The summary of a run."""
    used_s = sum(result.epoch_s)
    return TeamsSummary(
        sync=str(sync),
        workers=result.workers,
        teams=result.teams,
        samples=samples,
        global_batch=options.global_batch,
        seed=options.seed,
        wall_s=result.wall_s,
        epoch_s=list(result.epoch_s),
        samples_per_s=samples * len(result.epoch_s) / used_s if used_s else 0.0,
        rounds=result.rounds,
        updates=result.updates,
        staleness=result.staleness,
        dropped=result.dropped,
        interval_s=result.interval_s,
        link_bytes=result.link_bytes,
        waited_s=result.waited_s,
        idle_s=result.wall_s - result.computed_s,
        survival=survival,
        problem=result.problem,
        log=None if log is None else str(log),
    )


def say_bytes(count: float) -> str:
    """A number of bytes, as people say it."""
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"
