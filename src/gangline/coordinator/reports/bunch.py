# SPDX-License-Identifier: Apache-2.0
"""The reports of many workers on one step, as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.coordinator.inputs import Said, StepsReported
from gangline.protocol.messages import Measured
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.planning.allocation.bounds import Floats, Shares

_WHOLE, _FLOAT = np.dtype("<i8"), np.dtype("<f8")
_SIZE = 8


class Bunch(NamedTuple):
    """What `StepsReported` says; one entry per worker in each array."""

    given: StepsReported
    workers: Shares
    samples: Shares
    compute_s: Floats
    exchange_s: Floats
    hop_peers: Shares
    """Empty where nobody knows of a hop, as `hop_s` then is."""
    hop_s: Floats

    @classmethod
    def of(cls, given: StepsReported) -> Bunch:
        """Unpacks them. Raises UsageError where they do not fit together."""
        expected = len(given.workers)
        names = ("workers", "samples", "compute_s", "exchange_s")
        for name in (*names, "hop_peers", "hop_s") if given.hop_peers or given.hop_s else names:
            length = len(getattr(given, name))
            if length != expected or length % _SIZE:
                raise UsageError(
                    f"StepsReported with {length} bytes of {name}, and {expected} of workers: "
                    f"each worker has {_SIZE} in every column"
                )
        return cls(
            given,
            workers=np.frombuffer(given.workers, _WHOLE),
            samples=np.frombuffer(given.samples, _WHOLE),
            compute_s=np.frombuffer(given.compute_s, _FLOAT),
            exchange_s=np.frombuffer(given.exchange_s, _FLOAT),
            hop_peers=np.frombuffer(given.hop_peers, _WHOLE),
            hop_s=np.frombuffer(given.hop_s, _FLOAT),
        )

    def singles(self) -> Iterator[Said]:
        """The same, said by one worker after the other."""
        given = self.given
        hops: list[tuple[tuple[int, float], ...]] = [()] * len(self.workers)
        if len(self.hop_s):
            pairs = zip(self.hop_peers.tolist(), self.hop_s.tolist(), strict=True)
            hops = [(pair,) for pair in pairs]
        rows = zip(
            self.workers.tolist(),
            self.samples.tolist(),
            self.compute_s.tolist(),
            self.exchange_s.tolist(),
            hops,
            strict=True,
        )
        for worker, samples, compute_s, exchange_s, own in rows:
            message = Measured(
                step=given.step,
                view=given.view,
                samples=samples,
                compute_s=compute_s,
                exchange_s=exchange_s,
                other_s=given.other_s,
                hops=own,
                team=given.team,
            )
            yield Said(worker=worker, message=message)


def packed(
    *,
    step: int,
    view: int,
    workers: Shares,
    samples: Shares,
    compute_s: Floats,
    exchange_s: Floats,
    other_s: float = 0.0,
    hop_peers: Shares | None = None,
    hop_s: Floats | None = None,
    team: int = -1,
) -> StepsReported:
    """The reports of many workers on one step, as the coordinator is given them."""
    return StepsReported(
        step=step,
        view=view,
        team=team,
        workers=workers.astype(_WHOLE, copy=False).tobytes(),
        samples=samples.astype(_WHOLE, copy=False).tobytes(),
        compute_s=compute_s.astype(_FLOAT, copy=False).tobytes(),
        exchange_s=exchange_s.astype(_FLOAT, copy=False).tobytes(),
        other_s=other_s,
        hop_peers=b"" if hop_peers is None else hop_peers.astype(_WHOLE, copy=False).tobytes(),
        hop_s=b"" if hop_s is None else hop_s.astype(_FLOAT, copy=False).tobytes(),
    )
