# SPDX-License-Identifier: Apache-2.0
"""What `gangline.paramserv` returns."""

from __future__ import annotations

from typing import Any

import msgspec


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch, when all its rows were in the model."""

    epoch: int
    """From 1."""
    loss: float | None = None
    """What `validate` found; None without one."""
    accuracy: float | None = None
    seconds: float
    """Since the beginning of the run."""
    samples: int
    """Rows in the model by then."""


class Tally(msgspec.Struct, kw_only=True):
    """What is counted while a run goes on."""

    updates: int = 0
    samples: int = 0
    batches: int = 0
    dropped: int = 0
    staleness: dict[int, int] = msgspec.field(default_factory=dict)
    samples_of: dict[int, int] = msgspec.field(default_factory=dict)
    waited_s: dict[int, float] = msgspec.field(default_factory=dict)
    lost: dict[int, str] = msgspec.field(default_factory=dict)


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """The model, and how it came about."""

    model: Any
    """A list, tuple or dict, as it was given."""
    history: tuple[Epoch, ...]
    mode: str
    workers: int
    """How many took part: no more than there are rows."""
    updates: int
    """Updates that were applied."""
    batches: int
    samples: int
    """Rows that are in the model: each once per epoch, with `overlap_reshuffle` once per worker."""
    samples_of: dict[int, int]
    """The same for each worker."""
    dropped: int
    """Updates that came late (`backup`); their rows were used again."""
    staleness: dict[int, int]
    """How many updates were that stale: applied after so many others that they did not know."""
    waited_s: dict[int, float]
    """Seconds that each worker had nothing to do, because of the mode or because no rows were left."""
    lost: dict[int, str]
    """Workers that were killed or given up, and why; others have computed their rows."""
    seconds: float

    def __repr__(self) -> str:
        stale = sum(lag * count for lag, count in self.staleness.items()) / max(1, self.updates)
        lines = [
            f"Trained({self.mode}, {self.workers} worker{'s'[self.workers == 1 :]}, "
            f"{len(self.history)} epoch{'s'[len(self.history) == 1 :]}, "
            f"{self.seconds:.2f} s)",
            f"  {self.updates} updates of {self.samples} samples in {self.batches} batches, "
            f"{self.dropped} dropped; staleness {stale:.2f} on average, "
            f"{max(self.staleness, default=0)} at most",
            "  waited: "
            + ", ".join(f"{one}: {s:.2f} s" for one, s in sorted(self.waited_s.items())),
        ]
        lines += [f"  lost: worker {one} ({why})" for one, why in sorted(self.lost.items())]
        if self.history and self.history[-1].loss is not None:
            last = self.history[-1]
            accuracy = "" if last.accuracy is None else f", accuracy {last.accuracy:.4f}"
            lines.append(f"  loss {last.loss:.6g}{accuracy} after epoch {last.epoch}")
        return "\n".join(lines)
