# SPDX-License-Identifier: Apache-2.0
"""`gangline.tile`: one model, whose activations are cut over the workers of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gangline.tiling.grid import Dims, Grid
from gangline.tiling.model import TiledModel
from gangline.tiling.peers import JobPeers
from gangline.tiling.plan import Costs, make_plan
from gangline.tiling.tracing import trace_steps
from gangline.worker.job import job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.tiling.exchange import Peers


def tile(
    model: nn.Module,
    *,
    dims: Dims,
    input_shape: Sequence[int],
    output: str = "whole",
    halo: str = "auto",
    costs: Costs | None = None,
    group: Peers | None = None,
) -> TiledModel:
    """Cuts the activations of a CNN over the workers of the job. All workers must call it.

    - `dims`: what is cut. `2`: dimension 2 over all workers, evenly; `{2: 2, 3: 2}`: a grid of tiles;
      `{2: [3, 1]}`: tiles of unlike size. Dimension 0 is the batch, 1 the channels, then comes space.
    - `input_shape`: the shape of the whole input, with the batch.
    - `output`: "whole" if every worker gets the whole output and computes the same loss; "tile" if each
      gets its tile, and the loss of the model is the sum of the workers' losses.
    - `halo`: what to do where a layer needs more than the own tile: "exchange", "recompute", or what
      costs less ("auto"), reckoned with `costs`.
    - `group`: who has the tiles, where that is not the job: a group of `gangline.collectives`.

    All workers begin with rank 0's parameters. Raises UnsupportedError with the layer that is in the
    way.
    """
    peers = JobPeers(job) if group is None else group
    shape = tuple(int(length) for length in input_shape)
    grid = Grid(dims, peers.size)
    grid.check(shape)
    steps = trace_steps(model, shape)
    make_plan(steps, grid, halo=halo, costs=costs)
    tiled = TiledModel(model, steps, peers, output)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            peers.broadcast(tensor.detach(), 0)
    return tiled
