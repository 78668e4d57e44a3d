# SPDX-License-Identifier: Apache-2.0
"""A run as a trace: open the file in https://ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from gangline.observe.tracing.chrome import to_trace as to_trace
from gangline.observe.tracing.scene import read_scene
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gangline.spec.event import AnyEvent

PERFETTO = (".pftrace", ".perfetto-trace", ".pb")


def write_trace(events: Iterable[AnyEvent], path: Path) -> None:
    """Writes a trace: Perfetto's own format where the file's name asks for it, else Chrome's JSON."""
    if path.suffix not in PERFETTO:
        path.write_bytes(msgspec.json.encode(to_trace(events)))
        return
    if find_spec("perfetto") is None:
        raise UsageError(
            f"a trace in Perfetto's own format ({path.name}) needs its package: pip install "
            "'gangline[trace]'; or give a file that ends in .json"
        )
    from gangline.observe.tracing.perfetto import packets_of

    with path.open("wb") as file:
        for packet in packets_of(read_scene(events)):
            file.write(packet)
