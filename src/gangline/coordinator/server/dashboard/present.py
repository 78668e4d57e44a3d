# SPDX-License-Identifier: Apache-2.0
"""A job as it is now: what the coordinator knows of it, and what its logs say of the last steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gangline.protocol.live import Snapshot, WorkerNow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.coordinator.server.dashboard.fold import Fold, Lately
    from gangline.protocol.status import Status, WorkerStatus


def snapshot_of(
    status: Status, fold: Fold, *, now: float, may_kill: bool = False, skipped_bytes: int = 0
) -> Snapshot:
    """Both together."""
    view = status.view
    shares = {} if view is None else dict(zip(view.members, view.shares, strict=True))
    lately = {worker: fold.lately(worker, now) for worker in shares}
    least_s = _least_exchange_s(lately, fold.teams)
    workers = [
        _worker(one, fold, share=shares.get(one.worker), lately=lately.get(one.worker),
                least_s=least_s.get(fold.teams.get(one.worker, 0), 0.0))
        for one in status.workers
    ]  # fmt: skip
    return Snapshot(
        t=now,
        run=status.run,
        expected_workers=status.expected_workers,
        view=-1 if view is None else view.number,
        step=status.step,
        epoch=fold.epoch,
        epochs=fold.epochs,
        sync=status.sync,
        structure=None if view is None else view.structure,
        is_paused=status.is_paused,
        may_kill=may_kill,
        samples_per_s=_sum(one.samples_per_s for one in workers),
        parts_per_s=_sum(one.alone_per_s for one in workers),
        loss=fold.timeline.loss,
        num_merges=fold.num_merges,
        last_merge=fold.last_merge,
        workers=workers,
        bars=fold.bars(),
        skipped_bytes=skipped_bytes,
    )


def _least_exchange_s(lately: dict[int, Lately | None], teams: dict[int, int]) -> dict[int, float]:
    """By team: what the exchange itself takes, per step: whoever comes last does not wait."""
    least: dict[int, float] = {}
    for worker, found in lately.items():
        if found is not None:
            team, each_s = teams.get(worker, 0), found.sums.exchange_s / found.sums.steps
            least[team] = min(least.get(team, math.inf), each_s)
    return least


def _worker(
    status: WorkerStatus, fold: Fold, *, share: int | None, lately: Lately | None, least_s: float
) -> WorkerNow:
    used = fold.used.get(status.worker) if status.is_connected else None
    now = WorkerNow(
        worker=status.worker,
        host=status.host,
        pid=status.pid,
        state=status.state,
        is_connected=status.is_connected,
        is_member=share is not None,
        team=fold.teams.get(status.worker, 0),
        share=share or 0,
        step=status.step,
        cpu=None if used is None else used.cpu,
        memory_bytes=None if used is None else used.memory_bytes,
        gpu=None if used is None else used.gpu,
        why=fold.why.get(status.worker, ""),
        node=fold.nodes.get(status.worker, ""),
    )
    if lately is not None and lately.elapsed_s > 0:
        sums, elapsed_s = lately
        steps, exchange_s = sums.steps, min(least_s * sums.steps, sums.exchange_s)
        now.samples_per_s = sums.samples / elapsed_s
        now.alone_per_s = sums.samples / sums.own_s if sums.own_s > 0 else None
        now.busy = min(1.0, sums.own_s / elapsed_s)
        # Rounded: what is left of a sum is no waiting.
        now.wait = max(0.0, round(1.0 - now.busy - exchange_s / elapsed_s, 9))
        now.compute_s, now.data_s = sums.compute_s / steps, sums.data_s / steps
        now.exchange_s, now.update_s = sums.exchange_s / steps, sums.update_s / steps
    return now


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None
