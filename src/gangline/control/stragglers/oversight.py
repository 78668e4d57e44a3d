# SPDX-License-Identifier: Apache-2.0
"""What the runtime manager remembers: of every member, and of every worker that it has put out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from gangline.control.detection import Detector
from gangline.planning.allocation.bounds import Floats, Shares

if TYPE_CHECKING:
    from gangline.control.shares.speeds import Speeds

COMPUTE, LINK, LINE = "compute", "link", "line"
"""The troubles that are told apart: the worker itself, its way to its peers, its way to the
coordinator."""
EXCHANGE = "exchange"
"""Why a worker is left out that is in no trouble: exchanging with it costs more than it computes."""
ALONE = "alone"
"""Why a worker is left out while another one is tried alone, and after that where it is better so."""
ORDER = "order"
"""Why a worker is left out that an operator keeps out: it comes back when an operator wants it."""
LATELY = 5
"""Steps that count as the last ones."""
SLOWER, RECOVERED = 1.5, 1.2
"""Who takes so many times as long as before is not healthy; who takes less than the second is."""
NOTHING: Mapping[int, int] = MappingProxyType({})
NEVER: Mapping[int, float] = MappingProxyType({})


class Spare(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is in the job and not in the view, and is watched until it may come back."""

    worker: int
    trouble: str
    """Why it was put out: `compute`, `link`, `exchange`, `alone` or `order`."""
    fixed_s: float
    per_sample_s: float
    """a and b of its steps, as they were when it was prepared."""
    least_s: float
    """What it took at least for the share that it had when it was put out."""
    is_changed: bool
    """Whether it was faster before, and not as slow as that all the time."""
    exchange_s: float
    """How long exchanging took while it took part."""
    together_s: float = 0.0
    """What a step took with it, where that is known better than it can be predicted; else 0."""
    max_samples: int
    since_s: float
    pause_s: float
    """How long it is out at least."""
    trial_s: float
    """After so long it is tried, whatever it shows."""
    slowdown: float = 1.0
    """How many times as long as when it was prepared it takes now, by its last showing."""
    first_slowdown: float | None = None
    """Its first showing, which is of the time when it was put out; None: there was none."""
    num_good: int = 0
    """How many showings in a row say that it would not hold the others up."""
    called_s: float | None = None
    """When it was asked back; None: it was not."""

    @property
    def least_now_s(self) -> float:
        """What its least share takes now: as when it was put out, less what it got faster since."""
        first = self.first_slowdown
        if first is None or (self.is_changed and first < RECOVERED):
            return 0.0  # it was as fast as before by the time that it first showed anything
        return self.least_s * self.slowdown / first


class Oversight(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is known of the members, in rank order, and of the spares."""

    computing: Detector
    """Judges what a sample costs."""
    linking: Detector
    """Judges how long a hop takes."""
    lining: Detector
    """Judges how late reports arrive."""
    lined_s: float
    """When it last did."""
    in_trouble: Mapping[str, NDArray[np.bool_]]
    """Who is in which trouble, by the last verdicts."""
    told: Mapping[str, NDArray[np.bool_]]
    """Who is said to be in which trouble: by verdicts that have lasted."""
    untold_s: Mapping[str, Floats]
    """Since when the verdicts on each member are not what is said; NaN: they are."""
    measured_s: tuple[float, ...]
    """When the last steps were measured, the newest last."""
    hop_s: Floats
    """How many seconds a MiB takes over each member's links, lately; NaN where nobody says."""
    exchange_s: Floats
    """How long the exchanges of these members took lately, the newest last; NaN before the first."""
    calm_exchange_s: float = math.inf
    """How long they took when that was shortest, since shares last moved far; infinite until enough of
    them are known."""
    lately: tuple[Floats, ...]
    """The last steps of each member with its present share, the newest last; NaN before them."""
    healthy_fixed_s: Floats
    healthy_per_sample_s: Floats
    """a and b of each member as they were before it got much slower; NaN before they are known."""
    lost_s: Floats
    """What steps took longer because a member was in the view, since that began."""
    lost_steps: Shares
    """How many steps in a row would have been shorter without it."""
    spares: tuple[Spare, ...] = ()
    exclusions: Mapping[int, int] = NOTHING
    """How often each worker was put out."""
    trials: Mapping[int, float] = NEVER
    """After how long each was to be tried, the last time."""
    has_weighed: bool = False
    """Whether a first step was looked at before it was exchanged."""
    has_hinted: bool = False
    """Whether people were told what would be better."""
    lowered: frozenset[int] = frozenset()
    """For whom the rate of its team was lowered."""

    @classmethod
    def begin(cls, detector: Detector) -> Self:
        """Nobody is there yet."""
        nobody = np.zeros(0, dtype=bool)
        return cls(
            computing=detector,
            linking=detector,
            lining=detector,
            lined_s=-math.inf,
            in_trouble={COMPUTE: nobody, LINK: nobody, LINE: nobody},
            told={COMPUTE: nobody, LINK: nobody, LINE: nobody},
            untold_s=dict.fromkeys((COMPUTE, LINK, LINE), np.zeros(0)),
            measured_s=(-math.inf,) * LATELY,
            hop_s=np.zeros(0),
            exchange_s=np.full(LATELY, np.nan),
            lately=(np.zeros(0),) * LATELY,
            healthy_fixed_s=np.zeros(0),
            healthy_per_sample_s=np.zeros(0),
            lost_s=np.zeros(0),
            lost_steps=np.zeros(0, dtype=np.int64),
        )

    def joined(self, workers: tuple[int, ...]) -> Self:
        """With these workers, who are no spares any more."""
        count = len(workers)
        healthy = [self.spare(worker) for worker in workers]
        fixed_s = [np.nan if spare is None else spare.fixed_s for spare in healthy]
        per_sample_s = [np.nan if spare is None else spare.per_sample_s for spare in healthy]
        nobody, unknown = np.zeros(count, dtype=bool), np.full(count, np.nan)
        return msgspec.structs.replace(
            self,
            computing=self.computing.joined(count),
            linking=self.linking.joined(count),
            lining=self.lining.joined(count),
            in_trouble={
                kind: np.concatenate((who, nobody)) for kind, who in self.in_trouble.items()
            },
            told={kind: np.append(who, nobody) for kind, who in self.told.items()},
            untold_s={kind: np.append(since, unknown) for kind, since in self.untold_s.items()},
            hop_s=np.concatenate((self.hop_s, unknown)),
            lately=(np.full(len(self.hop_s) + count, np.nan),) * LATELY,
            healthy_fixed_s=np.append(self.healthy_fixed_s, fixed_s),
            healthy_per_sample_s=np.append(self.healthy_per_sample_s, per_sample_s),
            exchange_s=np.full(LATELY, np.nan),
            calm_exchange_s=math.inf,
            lost_s=np.zeros(len(self.lost_s) + count),
            lost_steps=np.zeros(len(self.lost_s) + count, dtype=np.int64),
            spares=tuple(spare for spare in self.spares if spare.worker not in workers),
        )

    def selected(self, places: Shares) -> Self:
        """Of some of the members."""
        return msgspec.structs.replace(
            self,
            computing=self.computing.selected(places),
            linking=self.linking.selected(places),
            lining=self.lining.selected(places),
            in_trouble={kind: who[places] for kind, who in self.in_trouble.items()},
            told={kind: who[places] for kind, who in self.told.items()},
            untold_s={kind: since[places] for kind, since in self.untold_s.items()},
            hop_s=self.hop_s[places],
            lately=(np.full(len(places), np.nan),) * LATELY,
            healthy_fixed_s=self.healthy_fixed_s[places],
            healthy_per_sample_s=self.healthy_per_sample_s[places],
            exchange_s=np.full(LATELY, np.nan),
            calm_exchange_s=math.inf,
            lost_s=np.zeros(len(places)),
            lost_steps=np.zeros(len(places), dtype=np.int64),
        )

    @property
    def least_s(self) -> Floats:
        """What each member took at least, lately, for its present share; NaN: not known yet."""
        least: Floats = np.minimum.reduce(self.lately)
        return least

    def slowdown(self, speeds: Speeds, samples: Shares) -> Floats:
        """How many times as long as before it got slower each member takes; NaN: nothing is known."""
        return speeds.predicted_s(samples) / (
            self.healthy_fixed_s + self.healthy_per_sample_s * samples
        )

    def with_spare(self, spare: Spare) -> Self:
        """With this spare, instead of what was known of it before."""
        others = tuple(one for one in self.spares if one.worker != spare.worker)
        return msgspec.structs.replace(self, spares=(*others, spare))

    def shown_by(self, workers: tuple[int, ...]) -> Floats:
        """How many times as long as when they were prepared these take, as far as they have shown."""
        known = {spare.worker: spare.slowdown for spare in self.spares}
        return np.array([known.get(worker, 1.0) for worker in workers])

    def spare(self, worker: int) -> Spare | None:
        """The spare of that number, if it is one."""
        return next((spare for spare in self.spares if spare.worker == worker), None)

    @property
    def is_exchange_longer(self) -> bool:
        """Whether exchanging has begun to take much longer than it took these members before."""
        return self.recent_exchange_s > SLOWER * self.calm_exchange_s

    @property
    def recent_exchange_s(self) -> float:
        """The exchange itself, lately; 0 where nobody says."""
        known = self.exchange_s[np.isfinite(self.exchange_s)]
        return float(np.median(known)) if len(known) else 0.0
