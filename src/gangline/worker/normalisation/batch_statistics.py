# SPDX-License-Identifier: Apache-2.0
"""Layers that normalise by the statistics of their batch: how few samples a worker may be given.

BatchNorm in training normalises by what it sees, and without `sync_batchnorm` that is the worker's
share. The fewer samples, the noisier the statistics: with 32 per worker nothing is lost, with 8 about
a point of accuracy on ImageNet, with 2 about eleven (Wu and He, "Group Normalization", 2018).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangline.spec.errors import UsageError
from gangline.spec.event import Decision
from gangline.worker.session import now

if TYPE_CHECKING:
    from gangline.spec.view import View
    from gangline.worker.session import Session

FEW_SAMPLES = 8
"""Fewer than these in one forward pass are too few to normalise by."""
ABLE = 2
"""With fewer than these BatchNorm cannot normalise at all."""


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """How the models use batch statistics."""

    name: str
    """What is trained, for people."""
    num_layers: int
    """Layers with batch statistics."""
    is_synchronised: bool
    """Whether they normalise by the samples of all workers."""
    num_micros: int
    """Into how many forward passes a share is cut."""

    @property
    def is_local(self) -> bool:
        """Whether what a worker computes depends on how many samples it is given."""
        return self.num_layers > 0 and not self.is_synchronised

    @property
    def fewest(self) -> int:
        """The fewest samples of a forward pass, where a ragged batch or a share is cut.

        Also where all workers' samples are normalised together: there may be no others.
        """
        return ABLE if self.num_layers else 1

    def least_share(
        self, asked: int | None, *, global_batch: int, workers: int, has_shares: bool
    ) -> int:
        """The least share that an allocation gives. Raises UsageError where there is none.

        Shares that somebody chose are left as they are, unless that one asked for a least share, too.
        """
        fewest = ABLE if self.is_local else 1
        if workers > 1 and global_batch < fewest * workers:
            raise UsageError(
                f"a global batch of {global_batch} leaves some of {workers} workers a single sample, "
                f"which BatchNorm cannot normalise: give at least global_batch={ABLE * workers}, "
                "start fewer workers, or normalise over all of them by sync_batchnorm=True"
            )
        if asked is None:
            if not self.is_local or has_shares:
                return fewest
            return max(ABLE, min(FEW_SAMPLES * self.num_micros, global_batch // workers))
        if asked < fewest:
            raise UsageError(
                f"min_share={asked} lets a worker have a single sample, which BatchNorm cannot "
                f"normalise: give at least min_share={ABLE}, or sync_batchnorm=True"
            )
        if asked * workers > global_batch:
            most = global_batch // workers
            raise UsageError(
                f"a global batch of {global_batch} cannot give each of {workers} workers "
                f"min_share={asked} samples: give at least global_batch={asked * workers}, at most "
                f"min_share={most}, or start at most {max(1, global_batch // asked)} workers"
            )
        return asked


class ShareWatch:
    """Warns once, when shares are too small to normalise by."""

    def __init__(self, session: Session, normalisation: Normalisation) -> None:
        self._session = session
        self._normalisation = normalisation
        self._has_warned = False

    def look(self, view: View) -> None:
        """New shares hold."""
        about = self._normalisation
        shares = [share for share in view.shares if share]
        fewest = min(shares) / about.num_micros
        if self._has_warned or not about.is_local or len(shares) == 1 or fewest >= FEW_SAMPLES:
            return
        self._has_warned = True
        text = _small_shares(about, shares)
        warnings.warn(text, UserWarning, stacklevel=2)
        self._session.record(
            Decision(
                t=now(),
                what="small_shares",
                reason=text,
                numbers={
                    "view": float(view.number),
                    "layers": float(about.num_layers),
                    "smallest_share": float(min(shares)),
                    "global_batch": float(sum(shares)),
                },
            )
        )


def _small_shares(about: Normalisation, shares: list[int]) -> str:
    parts = f", each in {about.num_micros} parts" if about.num_micros > 1 else ""
    layers = f"{about.num_layers} BatchNorm layer{'s' if about.num_layers > 1 else ''}"
    return (
        f"{about.name} has {layers}, and the shares are {', '.join(map(str, shares))} of a batch of "
        f"{sum(shares)}{parts}: each worker normalises by its own samples, and fewer than "
        f"{FEW_SAMPLES} at a time train worse than one process would. Use "
        "prepare(…, sync_batchnorm=True), which normalises over all workers, or a larger min_share= "
        "or global_batch="
    )
