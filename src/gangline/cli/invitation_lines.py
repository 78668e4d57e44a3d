# SPDX-License-Identifier: Apache-2.0
"""What is printed where machines are invited."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from gangline.cli.run.end import shown_path
from gangline.spec.machines.code import in_mib
from gangline.spec.machines.link import is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gangline.launch.joining.code import Collected
    from gangline.spec.machines.code import CodeManifest
    from gangline.spec.machines.link import JoinLink


class Made(Protocol):
    """An invitation, whoever made it."""

    @property
    def ends_s(self) -> float: ...

    @property
    def uses(self) -> int: ...


def invitation_lines(ways: Sequence[JoinLink], made: Made, run_dir: Path) -> list[str]:
    """The command to paste elsewhere, the same by other addresses, and for how long it holds."""
    first, *others = ways
    machines = "1 machine" if made.uses == 1 else f"{made.uses} machines"
    lines = ["paste this on every other machine:", f"  {first.command}"]
    if others:
        lines += ["or, where that address is not reached:", *(f"  {one.command}" for one in others)]
    if is_loopback(first.host):
        lines.append("(that reaches this machine only)")
    left = (made.ends_s - time.time()) / 60
    minutes = round(left) if left > 1 else round(left, 1)
    again = f"`gangline token make {shown_path(run_dir)}` makes another"
    lines.append(f"it lets in {machines} within {minutes:g} minutes; {again}")
    return lines


def code_lines(offered: Collected) -> list[str]:
    """Which code the others are offered, as they are shown it; and what is not in it."""
    code = offered.manifest
    if not code.is_offered:
        return []
    text = f"they are offered this code: {count(code)}, fingerprint {code.fingerprint}"
    left_out = [f"left out, because it is a link: {name}" for name in offered.left_out[:8]]
    missing = [
        f"not in it, though it is imported: {name}; add it with --include {name}, or to git"
        for name in offered.missing[:8]
    ]
    return [text, *left_out, *missing]


def count(code: CodeManifest) -> str:
    """How much code there is."""
    files = "1 file" if len(code.files) == 1 else f"{len(code.files)} files"
    return f"{files}, {in_mib(code.num_bytes)}"
