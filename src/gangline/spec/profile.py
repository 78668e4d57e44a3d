# SPDX-License-Identifier: Apache-2.0
"""The profile: what was measured about a cluster, its nodes and the links between them.

Links are described by place, so that a hundred thousand nodes need no table of pairs. A node is at a
`place` such as `lab/rack3`; a `zone` says what one message costs between two nodes whose places part
there (`""` is the whole cluster). A node's own `access` link, where it is worse, limits every path to
it. `pairs` are links that were measured one by one: all there is of a small cluster, or the exceptions
of a large one.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import LogError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a message costs: `latency_s + bytes / bytes_per_s`."""

    latency_s: float
    """One way, of an empty message."""
    bytes_per_s: float
    """Of a large message, when nothing else is under way."""
    spread: float = 0.0
    """Relative spread of the measurements: interquartile range over median."""

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < math.inf and 0 < self.bytes_per_s < math.inf):
            raise UsageError(
                "a link has a finite latency_s of 0 or more and a finite bytes_per_s above 0, not "
                f"latency_s = {self.latency_s}, bytes_per_s = {self.bytes_per_s}"
            )
        if not 0 <= self.spread < math.inf:
            raise UsageError(f"the spread of a link is finite and 0 or more, not {self.spread}")

    def time_s(self, num_bytes: float) -> float:
        """How long one message of that size is under way."""
        return self.latency_s + num_bytes / self.bytes_per_s


class Zone(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place that holds nodes or smaller places, and the link between what it holds."""

    place: str
    """`site/rack`, as in the nodes' places; `""` is the whole cluster."""
    link: Link


class PairLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link that was measured between two nodes, both ways."""

    source: str
    target: str
    there: Link
    back: Link | None = None
    """From target to source; None: like `there`."""
    shared: str = ""
    """The name of a link that this pair shares with others of the same name; empty: none."""

    @property
    def worst(self) -> Link:
        """Of both ways: what an exchange, which uses both, must reckon with."""
        back = self.back or self.there
        return Link(
            latency_s=max(self.there.latency_s, back.latency_s),
            bytes_per_s=min(self.there.bytes_per_s, back.bytes_per_s),
            spread=max(self.there.spread, back.spread),
        )


class NodeProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured about one node. A step of n samples takes `fixed_s + per_sample_s·n`."""

    name: str
    per_sample_s: float
    """b: seconds of one more sample."""
    fixed_s: float = 0.0
    """a: seconds of a step however small."""
    spread: float = 0.0
    """Relative spread of the step times."""
    place: str = ""
    access: Link | None = None
    """The node's own link; None: never worse than its zone's."""
    memory_bytes: float | None = None
    """What model and samples may use; None: not known, taken as enough."""
    reduce_s_per_byte: float = 0.0
    """γ: seconds to add one received byte to a local one."""
    memory_bytes_per_s: float | None = None
    """How fast memory is read; None: not measured."""
    cache_bytes: int | None = None
    """The second-level cache of one core."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        for field, value, is_good, expected in (
            ("per_sample_s", self.per_sample_s, 0 < self.per_sample_s < math.inf, "above 0"),
            ("fixed_s", self.fixed_s, 0 <= self.fixed_s < math.inf, "0 or more"),
            ("spread", self.spread, 0 <= self.spread < math.inf, "0 or more"),
            ("memory_bytes", self.memory_bytes, _is_above_0(self.memory_bytes), "above 0"),
            (
                "reduce_s_per_byte",
                self.reduce_s_per_byte,
                0 <= self.reduce_s_per_byte < math.inf,
                "0 or more",
            ),
            (
                "memory_bytes_per_s",
                self.memory_bytes_per_s,
                _is_above_0(self.memory_bytes_per_s),
                "above 0",
            ),
        ):
            if not is_good:
                raise UsageError(
                    f"node {self.name!r}: {field} must be finite and {expected}, not {value}"
                )


class ClusterProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a plan is made from, but for the workload."""

    nodes: tuple[NodeProfile, ...]
    zones: tuple[Zone, ...] = ()
    pairs: tuple[PairLink, ...] = ()
    model: str = ""
    """What the nodes computed when they were measured, for people."""

    def __post_init__(self) -> None:
        if not self.nodes:
            raise UsageError("a profile needs at least one node, and there is none in `nodes`")
        names = {node.name for node in self.nodes}
        if len(names) < len(self.nodes):
            _refuse_twice("node names", [node.name for node in self.nodes])
        if len({zone.place for zone in self.zones}) < len(self.zones):
            _refuse_twice("places of zones", [zone.place for zone in self.zones])
        self._check_pairs(names)

    def _check_pairs(self, names: set[str]) -> None:
        seen = set()
        for pair in self.pairs:
            for name in (pair.source, pair.target):
                if name not in names:
                    raise UsageError(
                        f"the pair {pair.source!r} to {pair.target!r} speaks of {name!r}, which is "
                        "no node of the profile; correct the name, or add the node"
                    )
            ends = frozenset((pair.source, pair.target))
            if len(ends) < 2:
                raise UsageError(f"the pair {pair.source!r} to itself is no link; leave it out")
            if ends in seen:
                raise UsageError(
                    f"the link between {pair.source!r} and {pair.target!r} is there twice, so that "
                    "they may disagree; give one pair with `there` and `back`"
                )
            seen.add(ends)

    @classmethod
    def from_file(cls, path: Path) -> ClusterProfile:
        """Reads a profile (JSON, or TOML by its ending); every mistake in it is named."""
        decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
        try:
            return decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise LogError(f"cannot read the profile {path}: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LogError(
                f"the profile {path} is not usable: {error}; `gangline probe` writes such files"
            ) from error

    def to_json(self) -> bytes:
        """The document that `from_file` reads, without what is as it is by default."""
        return msgspec.json.format(msgspec.json.encode(_plain(self)), indent=2)


def _plain(value: object) -> object:
    """Structs as dicts without the fields that hold their defaults: profiles stay readable."""
    if isinstance(value, msgspec.Struct):
        defaults = {field.name: field.default for field in msgspec.structs.fields(value)}
        return {
            name: _plain(content)
            for name, default in defaults.items()
            if (content := getattr(value, name)) != default
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _is_above_0(value: float | None) -> bool:
    return value is None or 0 < value < math.inf


def _refuse_twice(what: str, values: list[str]) -> None:
    twice = sorted(value for value, count in Counter(values).items() if count > 1)
    shown = ", ".join(map(repr, twice[:5]))
    raise UsageError(f"{what} must differ; used more than once: {shown}")
