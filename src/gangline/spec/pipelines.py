# SPDX-License-Identifier: Apache-2.0
"""The nouns of pipelines: a model is a chain of layers, which are cut into stages on several machines.

A job is a list of pipelines side by side. Each holds the whole model and computes its share of every
global batch; a machine that holds the whole model alone is a pipeline of one stage.
"""

from __future__ import annotations

import math

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.profile import Link

SCHEDULES = ("1f1b", "gpipe", "pipedream")
"""In which order stages do the micro-batches. `pipedream` is not exact."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What n samples take: `fixed_s + sample_s·n`."""

    fixed_s: float = 0.0
    sample_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.fixed_s < math.inf and 0 <= self.sample_s < math.inf):
            raise UsageError(
                "a layer's seconds must be finite and 0 or more, not "
                f"fixed_s = {self.fixed_s}, sample_s = {self.sample_s}"
            )

    def time_s(self, samples: float) -> float:
        """Seconds for so many samples at once."""
        return self.fixed_s + self.sample_s * samples


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of the chain, as every machine sees it: how much memory and traffic it costs."""

    name: str
    parameter_bytes: float = 0.0
    state_bytes: float = 0.0
    """Parameters, gradients, buffers and the optimizer's state."""
    saved_bytes: float = 0.0
    """Per sample: what the forward pass keeps for the backward pass."""
    input_bytes: float = 0.0
    """Per sample: what comes from the layer before it."""
    output_bytes: float = 0.0
    """Per sample: what goes to the next layer."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__[1:]:
            value = getattr(self, field)
            if not 0 <= value < math.inf:
                raise UsageError(
                    f"layer {self.name!r}: {field} must be finite and 0 or more, not {value}"
                )


class PlannedLayer(Layer, frozen=True, kw_only=True):
    """A layer of a workload, for plans: on every node it takes the same part of the computing."""

    part: float
    """Of what a sample takes in all layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.part <= 1:
            raise UsageError(f"layer {self.name!r}: part is between 0 and 1, not {self.part}")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that may hold a stage: how fast it computes each layer, and its memory."""

    name: str
    forward: tuple[Pace, ...]
    """One for each layer."""
    backward: tuple[Pace, ...]
    memory_bytes: float | None = None
    """What states and activations may use; None: not known, taken as enough."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The layers start … stop - 1, on one machine."""

    machine: str
    start: int
    stop: int


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Stages that hold the whole model together, and what they compute of each global batch."""

    stages: tuple[Stage, ...]
    share: int
    micro_batches: int

    @property
    def machines(self) -> tuple[str, ...]:
        """In the order of the stages."""
        return tuple(stage.machine for stage in self.stages)


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """The layers start … stop - 1 are also kept by a machine that does not compute them."""

    machine: str
    start: int
    stop: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Who computes what: pipelines side by side, and who keeps copies of what only one machine has."""

    pipelines: tuple[Pipeline, ...]
    copies: tuple[Copy, ...] = ()
    step_s: float = 0.0
    """What a step should take."""

    @property
    def machines(self) -> tuple[str, ...]:
        """All that compute."""
        return tuple(name for one in self.pipelines for name in one.machines)

    def describe(self) -> str:
        """In one line: `pipeline over a (0-3) and b (4-7), beside c alone`."""
        return ", beside ".join(_described(one) for one in self.pipelines)


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """What a message costs between two machines of a job."""

    usual: Link = Link(latency_s=0.0, bytes_per_s=1e18)
    pairs: dict[str, Link] = {}
    """By both names with a space between, in alphabetical order, where it is not the usual one."""

    def between(self, first: str, second: str) -> Link:
        """The link between two machines."""
        low, high = sorted((first, second))
        return self.pairs.get(f"{low} {high}", self.usual)


def _described(pipeline: Pipeline) -> str:
    if len(pipeline.stages) == 1:
        return f"{pipeline.stages[0].machine} alone"
    parts = [
        f"{one.machine} (layers {one.start} to {one.stop - 1})"
        if one.stop - one.start > 1
        else f"{one.machine} (layer {one.start})"
        for one in pipeline.stages
    ]
    return f"pipeline over {', '.join(parts[:-1])} and {parts[-1]}"
