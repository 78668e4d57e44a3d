# SPDX-License-Identifier: Apache-2.0
"""Who keeps a copy of layers that only one machine holds, so that they outlive it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.planning.pipelines.memory import stage_bytes
from gangline.spec.pipelines import Copy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gangline.planning.pipelines.memory import Way
    from gangline.spec.pipelines import Layer, Pipeline


def place_copies(
    layers: Sequence[Layer],
    pipelines: Sequence[Pipeline],
    ways: Sequence[Way],
    memory: Mapping[str, float | None],
) -> tuple[Copy, ...]:
    """A copy of every layer that one machine holds alone, where another one has room for it.

    With several pipelines every layer is on several machines already. In one pipeline a stage's copy
    goes to the next machine, then to whoever has the most room; what has none is left out.
    """
    if len(pipelines) != 1:
        return ()
    stages, way = pipelines[0].stages, ways[0]
    room: dict[str, float] = {}
    for number, stage in enumerate(stages):
        limit = memory[stage.machine]
        used = stage_bytes(layers[stage.start : stage.stop], way, behind=len(stages) - 1 - number)
        room[stage.machine] = float("inf") if limit is None else limit - used
    copies: list[Copy] = []
    for number, stage in enumerate(stages):
        following = [stages[(number + k) % len(stages)].machine for k in range(1, len(stages))]
        for layer in range(stage.start, stage.stop):
            copies += _place(layer, layers[layer].state_bytes, following, room)
    return _joined(copies)


def _place(layer: int, size: float, following: list[str], room: dict[str, float]) -> list[Copy]:
    fitting = [name for name in following if room[name] >= size]
    if not fitting:
        return []
    chosen = fitting[0] if fitting[0] == following[0] else max(fitting, key=room.__getitem__)
    room[chosen] -= size
    return [Copy(machine=chosen, start=layer, stop=layer + 1)]


def _joined(copies: list[Copy]) -> tuple[Copy, ...]:
    """Neighbours on one machine as one."""
    joined: list[Copy] = []
    for one in copies:
        if joined and joined[-1].machine == one.machine and joined[-1].stop == one.start:
            joined[-1] = Copy(machine=one.machine, start=joined[-1].start, stop=one.stop)
        else:
            joined.append(one)
    return tuple(joined)
