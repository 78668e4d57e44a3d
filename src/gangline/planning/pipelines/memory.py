# SPDX-License-Identifier: Apache-2.0
"""What a stage needs of its machine's memory, before anything is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.pipelines import Layer


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a share goes through a pipeline."""

    schedule: str = "1f1b"
    micro_batches: int = 1
    samples: int = 1
    """In the largest micro-batch."""
    recompute: bool = False
    """Whether a stage keeps its inputs alone, and computes its activations again when it needs them."""


def in_flight(way: Way, *, behind: int) -> int:
    """How many micro-batches a stage has done forward and not backward, at most.

    `behind` is how many stages come after it.
    """
    if way.schedule == "gpipe":
        return way.micro_batches
    return min(way.micro_batches, behind + 1)


def stage_bytes(layers: Sequence[Layer], way: Way, *, behind: int) -> float:
    """The memory of a stage of these layers, in bytes: states, activations, and what is sent.

    A stage that computes its activations again has those of one micro-batch at a time. With
    `pipedream` there is a version of the parameters for each micro-batch in flight, and the state
    before the first update, to which all go back if somebody is lost.
    """
    if not layers:
        return 0.0
    number = in_flight(way, behind=behind)
    saved = sum(layer.saved_bytes for layer in layers)
    kept = number * layers[0].input_bytes + saved if way.recompute else number * saved
    sent = 2 * (layers[0].input_bytes + layers[-1].output_bytes)
    states = sum(layer.state_bytes for layer in layers)
    if way.schedule == "pipedream":
        states = 2 * states + number * sum(layer.parameter_bytes for layer in layers)
    return states + way.samples * (kept + sent)
