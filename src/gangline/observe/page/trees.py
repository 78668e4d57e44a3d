# SPDX-License-Identifier: Apache-2.0
"""The structure of a view, from the one line that the log has, as a tree to draw."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gangline.spec.exchange.structure import MAX_LEVELS, RING, SERVER

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = re.compile(r"(ring|server)(?:\[([^\]]*)\])?(?: at (\d+))?\(")
_MEMBER = re.compile(r"(\d+)(\*?)")

_Leaf = dict[str, Any]


def parse_structure(text: str, member: Callable[[int], _Leaf]) -> dict[str, Any] | None:
    """The tree that `ring(ring(0*, 1), server(2*, 3))` describes; None where it describes none."""
    try:
        tree, end = _group(text, 0, member, depth=0)
    except ValueError:
        return None
    return tree if end == len(text) else None


def flat_ring(members: list[int], member: Callable[[int], _Leaf]) -> dict[str, Any]:
    """One ring of all."""
    return {
        "topology": RING,
        "leader": members[0] if members else -1,
        "compression": "none",
        "members": [member(one) for one in members],
        "groups": [],
    }


def cut_tree(tree: dict[str, Any], most: int) -> dict[str, Any]:
    """The same tree with so many members and groups in each group at most; `count` has them all."""
    parts = tree["groups"] or tree["members"]
    groups = [cut_tree(group, most) for group in tree["groups"][:most]]
    return {**tree, "count": len(parts), "members": tree["members"][:most], "groups": groups}


def _group(
    text: str, at: int, member: Callable[[int], _Leaf], *, depth: int
) -> tuple[dict[str, Any], int]:
    head = _HEAD.match(text, at)
    if head is None or depth > MAX_LEVELS:
        raise ValueError("no structure")
    members: list[_Leaf] = []
    groups: list[dict[str, Any]] = []
    leader = -1 if head[3] is None else int(head[3])
    at = head.end()
    while True:
        if _HEAD.match(text, at):
            inner, at = _group(text, at, member, depth=depth + 1)
            groups.append(inner)
        else:
            found = _MEMBER.match(text, at)
            if found is None:
                raise ValueError("no member")
            members.append(member(int(found[1])))
            leader = int(found[1]) if found[2] else leader
            at = found.end()
        if text[at : at + 1] == ")":
            break
        if text[at : at + 2] != ", ":
            raise ValueError("no end")
        at += 2
    if leader < 0 and groups:
        leader = int(groups[0]["leader"])
    topology = RING if head[1] == "ring" else SERVER
    group = {"topology": topology, "leader": leader, "compression": head[2] or "none"}
    return {**group, "members": members, "groups": groups}, at + 1
