# SPDX-License-Identifier: Apache-2.0
"""How tightly a parameter server holds its workers together: what `mode` takes.

    bsp            all updates of a round are applied together, and nobody begins the next one before
    asp            every update is applied when it arrives, and nobody ever waits
    ssp(4)         the same, but nobody begins a clock that is more than 4 ahead of the slowest's
    backup(1)      as bsp, but a round closes without the last one of its workers, which is dropped

`gangline.paramserver.clocks` has the definitions.
"""

from __future__ import annotations

import re

import msgspec

from gangline.spec.errors import UsageError

BSP = "bsp"
ASP = "asp"
SSP = "ssp"
BACKUP = "backup"
CONSISTENCIES = (BSP, ASP, SSP, BACKUP)

_FORM = re.compile(r"(?P<kind>[a-z]+)\s*(?:\(\s*(?P<number>[^()]*?)\s*\))?")
_EXAMPLE = "write bsp, asp, ssp(4) or backup(1)"


class Consistency(msgspec.Struct, frozen=True, kw_only=True):
    """A mode, checked when it is made."""

    kind: str = BSP
    staleness: int = 0
    """`ssp`: how many clocks ahead of the slowest's a worker may begin one."""
    backups: int = 0
    """`backup`: how many of the workers a round does not wait for."""

    def __post_init__(self) -> None:
        if self.kind not in CONSISTENCIES:
            raise UsageError(f"the mode {self.kind!r} is not known: {_EXAMPLE}")
        if self.staleness < 0:
            raise UsageError(
                f"ssp({self.staleness}): nobody can be kept behind the slowest worker; "
                f"give a staleness of 0 (which waits as bsp does) or more"
            )
        if self.backups < 0:
            raise UsageError(
                f"backup({self.backups}): give a number of workers, 0 (as bsp) or more"
            )
        for kind, number in ((SSP, self.staleness), (BACKUP, self.backups)):
            if number and self.kind != kind:
                raise UsageError(f"{self.kind} takes no number, but {kind} does: {_EXAMPLE}")

    @property
    def has_rounds(self) -> bool:
        """Whether the updates of a clock are applied together."""
        return self.kind in (BSP, BACKUP)

    def check(self, workers: int) -> None:
        """Refuses a number of workers that the mode cannot work with."""
        if workers < 1:
            raise UsageError(f"a parameter server has at least one worker, not {workers}")
        if self.backups >= workers:
            raise UsageError(
                f"{self} leaves nobody to wait for: of {workers} worker{'s' * (workers != 1)} "
                f"at most {workers - 1} can be spared; give fewer backups, or more workers"
            )

    def __str__(self) -> str:
        match self.kind:
            case "ssp":
                return f"{SSP}({self.staleness})"
            case "backup":
                return f"{BACKUP}({self.backups})"
            case _:
                return self.kind


def parse_consistency(text: str) -> Consistency:
    """What a user wrote. Raises UsageError where it means nothing."""
    match = _FORM.fullmatch(text.strip())
    if match is None or match["kind"] not in CONSISTENCIES:
        raise UsageError(f"the mode {text!r} is not known: {_EXAMPLE}")
    kind, number = match["kind"], match["number"]
    if kind in (BSP, ASP):
        if number is not None:
            raise UsageError(f"the mode {text!r}: {kind} takes no number; {_EXAMPLE}")
        return Consistency(kind=kind)
    if number is None or re.fullmatch(r"[+-]?[0-9]{1,9}", number) is None:
        raise UsageError(f"the mode {text!r}: {kind} takes one whole number; {_EXAMPLE}")
    if kind == SSP:
        return Consistency(kind=SSP, staleness=int(number))
    return Consistency(kind=BACKUP, backups=int(number))
