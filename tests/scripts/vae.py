# SPDX-License-Identifier: Apache-2.0
"""A variational autoencoder whose loss is a sum over the batch; the noise belongs to the samples."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("PLAIN"):
    import no_gangline as gangline
else:
    import gangline

PIXELS, LATENT = 36, 3


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(PIXELS, 16)
        self.fc21 = nn.Linear(16, LATENT)
        self.fc22 = nn.Linear(16, LATENT)
        self.fc3 = nn.Linear(LATENT, 16)
        self.fc4 = nn.Linear(16, PIXELS)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.fc1(x))
        mu, logvar = self.fc21(hidden), self.fc22(hidden)
        z = mu + noise * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon: Tensor, x: Tensor, mu: Tensor, logvar: Tensor) -> Tensor:
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


def pictures(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, PIXELS, generator=generator).round()
    return TensorDataset(x, torch.randn(count, LATENT, generator=generator))


def train(model: nn.Module, loader: Any, optimizer: optim.Optimizer) -> None:
    model.train()
    for data, noise in loader:
        optimizer.zero_grad()
        loss_function(*_with_data(model, data, noise)).backward()
        optimizer.step()


def test(model: nn.Module, loader: DataLoader[Any]) -> float:
    model.eval()
    test_loss = 0.0
    with torch.no_grad():
        for data, noise in gangline.evaluate(loader):
            test_loss += loss_function(*_with_data(model, data, noise)).item()
    return gangline.sum(test_loss) / len(loader.dataset)


def _with_data(model: nn.Module, data: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    recon, mu, logvar = model(data, noise)
    return recon, data, mu, logvar


def main() -> None:
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    train_loader = DataLoader(pictures(50, seed=5), batch_size=12, shuffle=True)
    test_loader = DataLoader(pictures(17, seed=6), batch_size=12)
    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=1e-2)

    gangline.init()
    model, optimizer, train_loader = gangline.prepare(
        model, optimizer, train_loader, reduction="sum"
    )
    curve = []
    for _ in gangline.epochs(4):
        train(model, train_loader, optimizer)
        curve.append(test(model, test_loader))
    if gangline.is_main():
        result = {"model": model.state_dict(), "curve": curve}
        torch.save(result, os.environ.get("RESULT", "vae.pt"))


if __name__ == "__main__":
    main()
