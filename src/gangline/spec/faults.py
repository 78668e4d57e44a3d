# SPDX-License-Identifier: Apache-2.0
"""The faults that a run shall survive: which worker, when, and what happens to it.

A fault plan is TOML:

    [[faults]]
    worker = 1
    step = 12
    where = "exchange"
    kind = "kill"

    [[faults]]
    worker = 2
    at_s = 30.0
    kind = "hang"
    for_s = 5.0
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.toml import read_toml

if TYPE_CHECKING:
    from pathlib import Path

PLACES = (
    "data",
    "forward",
    "backward",
    "part",
    "exchange",
    "update",
    "between",
    "call",
    "end",
    "regroup",
)
"""Where in a worker's loop a fault can happen, in the order in which a step comes by:

- `data`: its next batch is being cut and loaded
- `forward`: the batch has been handed out
- `backward`: in the middle of the backward pass
- `part`: where parts of the global batch are pulled, the next one is about to be waited for
- `exchange`: the local gradient is ready, the last part of it is about to be sent
- `update`: an optimizer has made its step
- `between`: the step is done and counts, the next batch is not asked for yet
- `call`: in a collective call outside of a step, such as `gangline.mean`
- `end`: the epoch's last batch is done, the others are waited for
- `regroup`: somebody came or was lost, and a new group is about to be entered
"""

_NEEDED = {"kill": (), "hang": ("for_s",), "slow": ("to", "for_steps"), "cut": ("for_s",)}
"""What each kind of fault must say beyond who and when."""
KINDS = tuple(_NEEDED)
_DEFAULT_PLACE = "forward"


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that goes wrong, once."""

    worker: int
    kind: str
    """`kill` (SIGKILL), `hang` (SIGSTOP, and SIGCONT after `for_s`), `slow` (computes at the fraction
    `to` of its speed, for `for_steps` steps) or `cut` (no line to the coordinator for `for_s`)."""
    step: int | None = None
    """The step in which it happens; where the worker skips that one, the next that it comes to."""
    where: str | None = None
    """The place in that step, one of `PLACES`; `forward` if nothing is said."""
    at_s: float | None = None
    """Instead of a step: so many seconds after the worker was prepared, wherever it is."""
    for_s: float | None = None
    to: float | None = None
    for_steps: int | None = None

    def __post_init__(self) -> None:
        if self.worker < 0:
            raise UsageError(f"a fault's worker is a number from 0 on, not {self.worker}")
        if self.kind not in _NEEDED:
            raise UsageError(f"a fault's kind is one of {', '.join(KINDS)}, not {self.kind!r}")
        self._check_time()
        self._check_extent()

    @property
    def place(self) -> str:
        """Where in its step it happens; `any` where a time is given."""
        return "any" if self.step is None else self.where or _DEFAULT_PLACE

    def _check_time(self) -> None:
        what = f"the {self.kind} of worker {self.worker}"
        if (self.step is None) == (self.at_s is None):
            raise UsageError(f"{what} needs either a step or a time at_s, and not both")
        if self.step is not None and self.step < 0:
            raise UsageError(f"{what}: steps are counted from 0; there is no step {self.step}")
        if self.at_s is not None and not _is_duration(self.at_s):
            raise UsageError(f"{what}: at_s is a number of seconds from 0 on, not {self.at_s}")
        if self.where is not None and self.at_s is not None:
            raise UsageError(f"{what} happens at a time, so it cannot say where; leave out where")
        if self.where is not None and self.where not in PLACES:
            raise UsageError(f"{what}: where is one of {', '.join(PLACES)}, not {self.where!r}")

    def _check_extent(self) -> None:
        what = f"the {self.kind} of worker {self.worker}"
        for name in ("for_s", "to", "for_steps"):
            is_given, is_needed = getattr(self, name) is not None, name in _NEEDED[self.kind]
            if is_needed and not is_given:
                raise UsageError(f"{what} must say {' and '.join(_NEEDED[self.kind])}")
            if is_given and not is_needed:
                raise UsageError(f"{what} knows no {name}; leave it out")
        if self.for_s is not None and not _is_duration(self.for_s):
            raise UsageError(f"{what}: for_s is a number of seconds from 0 on, not {self.for_s}")
        if self.to is not None and not 0 < self.to < 1:
            raise UsageError(
                f"{what}: to is a fraction of its speed, between 0 and 1, not {self.to}"
            )
        if self.for_steps is not None and self.for_steps < 1:
            raise UsageError(f"{what}: for_steps is at least 1, not {self.for_steps}")


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All faults of a run."""

    faults: tuple[Fault, ...] = ()

    @classmethod
    def from_toml(cls, path: Path) -> FaultPlan:
        """Reads a fault plan; every mistake in it is named."""
        return read_toml(path, cls, what="fault plan")

    def check(self, *, workers: int) -> None:
        """Refuses faults of workers that a job does not have."""
        for fault in self.faults:
            if fault.worker >= workers:
                raise UsageError(
                    f"the fault plan has a {fault.kind} of worker {fault.worker}, and the job has "
                    f"{workers} workers, 0 to {workers - 1}: correct the plan, or start more workers"
                )

    def of(self, worker: int) -> tuple[Fault, ...]:
        """The faults of one worker, in the order of the plan."""
        return tuple(fault for fault in self.faults if fault.worker == worker)


def _is_duration(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0
