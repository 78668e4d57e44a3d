# SPDX-License-Identifier: Apache-2.0
"""One way of handing out a loop: scheme, grain, layout of the queues, rule for victims."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.scheduling.schemes.parsing import SchemeSpec, parse_scheme
from gangline.scheduling.victims import DEFAULT_VICTIMS, VictimSpec, parse_victims
from gangline.spec.errors import UsageError
from gangline.spec.hints import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable


class Layout(StrEnum):
    """How many queues there are."""

    CENTRALIZED = "CENTRALIZED"
    """One for all."""
    PERGROUP = "PERGROUP"
    """One for each group of workers: a package, a node."""
    PERCPU = "PERCPU"
    """One for each worker."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """How a loop is handed out."""

    scheme: SchemeSpec
    grain: int = 1
    layout: Layout = Layout.CENTRALIZED
    victims: VictimSpec = msgspec.field(default_factory=lambda: parse_victims(DEFAULT_VICTIMS))
    pre_partition: bool = True
    """Whether each queue has a part of the loop to itself, cut when it is asked for a chunk; if not,
    all chunks are cut beforehand, and dealt to the queues one after the other. Several queues only."""

    @classmethod
    def parse(
        cls,
        scheme: str,
        *,
        grain: int = 1,
        layout: str = Layout.CENTRALIZED,
        victims: str = DEFAULT_VICTIMS,
        pre_partition: bool = True,
        load: Callable[[str], Any] | None = None,
    ) -> Choice:
        """From what people write; `load` imports their own classes. Raises UsageError."""
        return cls(
            scheme=parse_scheme(scheme, load=load),
            grain=grain,
            layout=parse_layout(layout),
            victims=parse_victims(victims, load=load),
            pre_partition=pre_partition,
        )

    def __post_init__(self) -> None:
        if self.grain < 1:
            raise UsageError(f"a grain of {self.grain} items: it must be at least 1")
        if self.layout != Layout.CENTRALIZED and not self.pre_partition and self.scheme.is_learning:
            raise UsageError(
                f"{self.scheme} learns while the loop runs, and chunks that are dealt to the queues "
                "beforehand cannot follow; let pre_partition be true, or take another scheme"
            )

    def __str__(self) -> str:
        grain = f", grain {self.grain}" if self.grain > 1 else ""
        if self.layout == Layout.CENTRALIZED:
            return f"{self.scheme}{grain}, {self.layout}"
        dealt = "" if self.pre_partition else ", dealt beforehand"
        return f"{self.scheme}{grain}, {self.layout}, {self.victims}{dealt}"


def parse_layout(text: str) -> Layout:
    """The layout that is meant. Raises UsageError with those that there are."""
    name = text.strip().upper()
    if name not in Layout.__members__:
        hint = did_you_mean(name, Layout.__members__)
        raise UsageError(f"no queue layout {text!r}; there are {', '.join(Layout)}{hint}")
    return Layout[name]
