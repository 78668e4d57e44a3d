# SPDX-License-Identifier: Apache-2.0
"""A model of which every worker computes one tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gangline.spec.errors import UsageError
from gangline.tiling.exchange import Moves, Peers, fetch, share
from gangline.tiling.geometry import Box, inside, lengths, volume, whole
from gangline.tiling.layers.base import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.tiling.plan import Step

OUTPUTS = ("whole", "tile")


class TiledModel(nn.Module):
    """What `gangline.tile` returns. `model` is the uncut model, whose parameters it computes with."""

    def __init__(self, model: nn.Module, steps: Sequence[Step], peers: Peers, output: str) -> None:
        super().__init__()
        if output not in OUTPUTS:
            raise UsageError(f"output={output!r} is none of {', '.join(OUTPUTS)}")
        self.model = model
        self._steps, self._peers, self._output = list(steps), peers, output
        last = {source: index for index, step in enumerate(steps) for source in step.inputs}
        self._done_with: list[list[int]] = [[] for _ in steps]
        for source, index in last.items():
            self._done_with[index].append(source)

    @property
    def input_box(self) -> Box:
        """Start and stop of this worker's tile of the input, in each dimension."""
        return self._steps[0].owned[self._peers.rank]

    @property
    def output_box(self) -> Box:
        """Start and stop of this worker's tile of the output, in each dimension."""
        return self._steps[-1].owned[self._peers.rank]

    def cut(self, tensor: Tensor) -> Tensor:
        """This worker's tile of a whole input."""
        return _cut(tensor, self._steps[0], self.input_box)

    def cut_output(self, tensor: Tensor) -> Tensor:
        """This worker's tile of something of the output's shape, say of the targets."""
        return _cut(tensor, self._steps[-1], self.output_box)

    def forward(self, tile: Tensor) -> Tensor:
        """From this worker's tile of the input. All workers must call it."""
        expected = lengths(self.input_box)
        if tuple(tile.shape) != expected:
            raise UsageError(
                f"this worker's tile of the input has the shape {expected}, not {tuple(tile.shape)}: "
                "give model.cut(whole input), or read what model.input_box says"
            )
        held: dict[int, Tensor] = {}
        made = tile
        for index, step in enumerate(self._steps):
            if step.layer is not None:
                made = self._compute(step, held)
            for source in self._done_with[index]:
                del held[source]
            if step.halo == "exchange":
                made = fetch(made, step.moves, self._peers)
            held[index] = made
        if self._output == "tile":
            return made
        final = self._steps[-1]
        return share(made, Moves(final.owned, [whole(final.shape)] * self._peers.size), self._peers)

    def sum_gradients(self) -> None:
        """Adds up the gradients of all workers' tiles: after `backward()`, before `step()`.

        All workers must call it. Afterwards every parameter has the gradient of the uncut model.
        """
        for alike in self._alike():
            flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in alike])
            self._peers.all_reduce(flat)
            parts = torch.split(flat, [parameter.numel() for parameter in alike])
            for parameter, part in zip(alike, parts, strict=True):
                parameter.grad = part.view_as(parameter).clone()

    def explain(self) -> str:
        """A table of the steps: the shape of each, this worker's tile, and how its halo is made."""
        rank = self._peers.rank
        rows: list[tuple[str, ...]] = [("step", "uncut", "tile", "computed", "halo")]
        for step in self._steps:
            boxes = (lengths(step.owned[rank]), lengths(step.computed[rank]))
            rows.append((step.name, *(_by(shape) for shape in (step.shape, *boxes)), step.halo))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (zip(row, widths, strict=True) for row in rows)
        return "\n".join("  ".join(cell.ljust(w) for cell, w in line).rstrip() for line in lines)

    def _compute(self, step: Step, held: dict[int, Tensor]) -> Tensor:
        assert step.layer is not None
        rank = self._peers.rank
        box = step.computed[rank]
        sources = [self._steps[index] for index in step.inputs]
        shapes = tuple(source.shape for source in sources)
        needs = (
            tuple(source.owned[rank] for source in sources)
            if step.layer.uses_own
            else step.layer.needs(box, shapes, step.shape)
        )
        inputs = [
            _take(held[index], self._steps[index].held[rank], need)
            for index, need in zip(step.inputs, needs, strict=True)
        ]
        if not volume(box) and not step.layer.meets:
            return _nothing(inputs, box)
        part = Part(box, step.owned[rank], needs, shapes, step.shape, self._peers)
        return step.layer.compute(inputs, part)

    def _alike(self) -> list[list[nn.Parameter]]:
        """The parameters that are trained, by dtype and device."""
        found: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                found.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        return list(found.values())


def _cut(tensor: Tensor, step: Step, box: Box) -> Tensor:
    if tuple(tensor.shape) != step.shape:
        raise UsageError(f"the uncut tensor has the shape {step.shape}, not {tuple(tensor.shape)}")
    return tensor[inside(box, whole(step.shape))].contiguous()


def _take(held: Tensor, have: Box, need: Box) -> Tensor:
    """A part of what is held. Also an empty part stays connected with the exchange that it came by."""
    if have == need:
        return held
    if not volume(need):
        return held.flatten()[:0].reshape(lengths(need))
    return held[inside(need, have)]


def _nothing(inputs: Sequence[Tensor], box: Box) -> Tensor:
    """The tile of a worker that has none of a small tensor; its gradient goes the others' way."""
    return inputs[0].new_zeros(lengths(box)) + sum(tensor.flatten()[:0].sum() for tensor in inputs)


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _by(shape: Sequence[int]) -> str:
    return " x ".join(str(length) for length in shape)
