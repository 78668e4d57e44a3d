# SPDX-License-Identifier: Apache-2.0
"""A graph convolution over the whole graph in each step; the labelled nodes are the samples."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

if os.environ.get("PLAIN"):
    import no_gangline as gangline
else:
    import gangline

NODES, FEATURES, CLASSES = 40, 7, 4


class GraphConvolution(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return adj @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gc1 = GraphConvolution(FEATURES, 8)
        self.gc2 = GraphConvolution(8, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return F.log_softmax(self.gc2(F.relu(self.gc1(x, adj)), adj), dim=1)


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    labels = torch.randint(0, CLASSES, (NODES,), generator=generator)
    features = torch.randn(NODES, FEATURES, generator=generator) + labels.view(-1, 1)
    is_edge = torch.rand(NODES, NODES, generator=generator) < 0.1
    adj = (is_edge | is_edge.t() | torch.eye(NODES, dtype=torch.bool)).to(features.dtype)
    nodes = torch.randperm(NODES, generator=generator)
    return adj / adj.sum(1, keepdim=True), features, labels, nodes[:25], nodes[25:]


def main() -> None:
    torch.manual_seed(42)
    torch.set_default_dtype(torch.float64)
    adj, features, labels, idx_train, idx_val = load_data()
    model = GCN()
    optimizer = optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-4)

    loader = gangline.batches(len(idx_train), global_batch=len(idx_train))
    gangline.init()
    model, optimizer, loader = gangline.prepare(model, optimizer, loader)
    curve = []
    for _ in gangline.epochs(15):
        for indices in loader:
            own = idx_train[indices]
            model.train()
            optimizer.zero_grad()
            output = model(features, adj)
            F.nll_loss(output[own], labels[own]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            output = model(features, adj)
        curve.append(F.nll_loss(output[idx_val], labels[idx_val]).item())
    if gangline.is_main():
        result = {"model": model.state_dict(), "curve": curve}
        torch.save(result, os.environ.get("RESULT", "gcn.pt"))


if __name__ == "__main__":
    main()
