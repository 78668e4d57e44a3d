# SPDX-License-Identifier: Apache-2.0
"""One pipeline for one share: where it is cut, and into how many micro-batches the share is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from gangline.planning.pipelines.cut import Cut, best_cut
from gangline.planning.pipelines.memory import Way
from gangline.planning.pipelines.timeline import StageTime, makespan_s
from gangline.spec.pipelines import Links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.pipelines import Layer, Machine

MOST_MICRO_BATCHES = 64


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has decided; None: it is chosen."""

    schedule: str = "1f1b"
    stages: int | None = None
    micro_batches: int | None = None
    recompute: bool | None = None


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline, and what its share takes."""

    cut: Cut
    way: Way
    share: int
    step_s: float

    @property
    def fixed_s(self) -> float:
        """Of a step however small: filling and draining."""
        return max(0.0, self.step_s - self.sample_s * self.share)

    @property
    def sample_s(self) -> float:
        """Of one more sample: what it costs the bottleneck."""
        return self.cut.bottleneck_s * self.way.micro_batches / max(1, self.share)


def solve(
    layers: Sequence[Layer],
    machines: Sequence[Machine],
    share: int,
    asked: Asked,
    *,
    links: Links | None = None,
) -> Solution | None:
    """The fastest way for these machines to do a share; None where it fits in no way.

    Activations are computed twice only where the share does not fit otherwise.
    """
    links = links or Links()
    for recompute in (False, True) if asked.recompute is None else (asked.recompute,):
        found = [
            solution
            for number in _numbers(share, asked)
            if (solution := _solve(layers, machines, share, asked, number, recompute, links))
        ]
        if found:
            return min(found, key=lambda one: (one.step_s, one.way.micro_batches))
    return None


def _numbers(share: int, asked: Asked) -> list[int]:
    """How many micro-batches are considered."""
    if asked.micro_batches is not None:
        return [min(asked.micro_batches, max(1, share))]
    most = min(max(1, share), MOST_MICRO_BATCHES)
    powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return sorted({*powers, *(3 * one // 2 for one in powers if 3 * one // 2 <= most), most})


def _solve(
    layers: Sequence[Layer],
    machines: Sequence[Machine],
    share: int,
    asked: Asked,
    number: int,
    recompute: bool,
    links: Links,
) -> Solution | None:
    way = Way(
        schedule=asked.schedule,
        micro_batches=number,
        samples=math.ceil(share / number),
        recompute=recompute,
    )
    cut = best_cut(layers, machines, way, links=links, stages=asked.stages)
    if cut is None:
        return None
    times = stage_times(layers, machines, cut, way, links)
    step_s = makespan_s(asked.schedule, times, micro_batches=number)
    return Solution(cut=cut, way=way, share=share, step_s=step_s)


def stage_times(
    layers: Sequence[Layer], machines: Sequence[Machine], cut: Cut, way: Way, links: Links
) -> list[StageTime]:
    """What each stage takes for one micro-batch, by the profile."""
    by_name = {machine.name: machine for machine in machines}
    times = []
    for number, stage in enumerate(cut.stages):
        machine = by_name[stage.machine]
        forward = sum(p.time_s(way.samples) for p in machine.forward[stage.start : stage.stop])
        backward = sum(p.time_s(way.samples) for p in machine.backward[stage.start : stage.stop])
        message = 0.0
        if number + 1 < len(cut.stages):
            link = links.between(stage.machine, cut.stages[number + 1].machine)
            message = link.time_s(way.samples * layers[stage.stop - 1].output_bytes)
        times.append(
            StageTime(
                forward_s=forward,
                backward_s=backward + (forward if way.recompute else 0.0),
                message_s=message,
            )
        )
    return times
