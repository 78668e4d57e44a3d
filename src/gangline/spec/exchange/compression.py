# SPDX-License-Identifier: Apache-2.0
"""How the members of a group shorten what they send: what a user may choose.

Compression.parse("top-k(0.01)")      the hundredth part of the elements, the largest ones
Compression.parse("powersgd")         with the usual parameter
Compression.parse("8-bit!")           also where it is found to be slower than none
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from gangline.spec.errors import UsageError

NONE = "none"
FP16, BF16, EIGHT_BIT, ONE_BIT = "fp16", "bf16", "8-bit", "1-bit"
TERNGRAD, TOP_K, SPARSE_BINARY, POWERSGD = "terngrad", "top-k", "sparse-binary", "powersgd"

_NAME = re.compile(r"(?P<kind>[a-z0-9-]+)(\((?P<parameter>[^()]*)\))?(?P<insists>!?)")


class Parameter(NamedTuple):
    """The number that a kind of compression takes."""

    usual: float
    least: float
    most: float
    is_whole: bool
    meaning: str

    def accepts(self, value: float) -> bool:
        is_inside = self.least <= value <= self.most
        return is_inside and (not self.is_whole or value == int(value))


_FRACTION = Parameter(0.01, 1e-6, 0.5, False, "the fraction of the elements, 0.000001 to 0.5")
_RANK = Parameter(4, 1, 32, True, "the rank, a whole number from 1 to 32")
KINDS: dict[str, Parameter | None] = {
    NONE: None,
    BF16: None,
    FP16: None,
    EIGHT_BIT: None,
    POWERSGD: _RANK,
    TOP_K: _FRACTION,
    TERNGRAD: None,
    ONE_BIT: None,
    SPARSE_BINARY: _FRACTION,
}
"""All kinds, and the parameters of those that take one."""


class Compression(msgspec.Struct, frozen=True):
    """One way to shorten what is sent."""

    kind: str = NONE
    """One of `KINDS`."""
    parameter: float | None = None
    """A fraction or a rank; None where the kind takes none."""
    is_insisted: bool = False
    """Whether it is used wherever it sends less, without being tried: `!` behind its name."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(
                f"compression {self.kind!r} is not known; choose one of: {', '.join(shown_kinds())}"
            )
        takes = KINDS[self.kind]
        if takes is None and self.parameter is not None:
            raise UsageError(
                f"compression {self.kind} takes no parameter, not {self.parameter:g}; "
                f"write {self.kind}"
            )
        if takes is not None and (self.parameter is None or not takes.accepts(self.parameter)):
            raise UsageError(
                f"compression {self.kind} needs {takes.meaning}, not {self.parameter}; "
                f"write for example {self.kind}({takes.usual:g})"
            )

    @classmethod
    def parse(cls, text: str) -> Compression:
        """The compression of a name such as `8-bit` or `top-k(0.01)`."""
        match = _NAME.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"{text!r} names no compression; write one of: {', '.join(shown_kinds())}"
            )
        kind, given, insists = match["kind"], match["parameter"], bool(match["insists"])
        if given is None:
            takes = KINDS.get(kind)
            return cls(kind, None if takes is None else takes.usual, insists)
        try:
            return cls(kind, float(given), insists)
        except ValueError as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                f"compression {text!r}: {given!r} is not a number; write for example top-k(0.01)"
            ) from error

    def __str__(self) -> str:
        name = self.kind if self.parameter is None else f"{self.kind}({self.parameter:g})"
        return f"{name}!" if self.is_insisted else name

    @property
    def is_none(self) -> bool:
        """Whether everything is sent as it is."""
        return self.kind == NONE

    @property
    def number(self) -> float:
        """The parameter of a kind that takes one."""
        assert self.parameter is not None
        return self.parameter


def shown_kinds() -> list[str]:
    """All kinds as they are written, with their usual parameters."""
    return [str(Compression.parse(kind)) for kind in KINDS]
