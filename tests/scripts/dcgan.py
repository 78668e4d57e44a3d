# SPDX-License-Identifier: Apache-2.0
"""A generator and a discriminator: two optimizers, three backward passes in a step."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("PLAIN"):
    import no_gangline as gangline
else:
    import gangline

NZ, WIDTH = 4, 4
REAL, FAKE = 1.0, 0.0


class Curve:
    """The losses; in `stateful`, because a step that is lost and done again counts once."""

    def __init__(self) -> None:
        self.values: list[list[float]] = []

    def state_dict(self) -> dict[str, list[list[float]]]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, list[list[float]]]) -> None:
        self.values = state["values"]


def weights_init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.1)
    elif isinstance(module, nn.GroupNorm):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def make_generator() -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(NZ, 2 * WIDTH, 4, bias=False),
        nn.GroupNorm(2, 2 * WIDTH),
        nn.ReLU(True),
        nn.ConvTranspose2d(2 * WIDTH, 1, 4, stride=2, padding=1, bias=False),
        nn.Tanh(),
    )


def make_discriminator() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, WIDTH, 4, stride=2, padding=1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(WIDTH, 1, 4, bias=False),
        nn.Sigmoid(),
        nn.Flatten(0),
    )


def pictures(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    waves = torch.sin(torch.rand(count, 1, 8, 1, generator=generator) * 6)
    return TensorDataset(
        waves.expand(-1, -1, -1, 8).contiguous(), torch.randn(count, NZ, 1, 1, generator=generator)
    )


def main() -> None:
    torch.manual_seed(4)
    torch.set_default_dtype(torch.float64)
    dataloader = DataLoader(pictures(43), batch_size=12)
    netG, netD = make_generator().apply(weights_init), make_discriminator().apply(weights_init)  # noqa: N806
    criterion = nn.BCELoss()
    optimizerD = optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))  # noqa: N806
    optimizerG = optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))  # noqa: N806
    curve = Curve()

    gangline.init()
    *_, dataloader = gangline.prepare(
        netD, netG, optimizerD, optimizerG, dataloader, stateful=[curve]
    )
    for _ in gangline.epochs(3):
        for data, noise in dataloader:
            # The discriminator: log(D(x)) + log(1 - D(G(z)))
            netD.zero_grad()
            label: Tensor = torch.full((len(data),), REAL)
            errD_real = criterion(netD(data), label)  # noqa: N806
            errD_real.backward()
            fake = netG(noise)
            label.fill_(FAKE)
            errD_fake = criterion(netD(fake.detach()), label)  # noqa: N806
            errD_fake.backward()
            optimizerD.step()
            # The generator: log(D(G(z)))
            netG.zero_grad()
            label.fill_(REAL)
            errG = criterion(netD(fake), label)  # noqa: N806
            errG.backward()
            optimizerG.step()

            errors = torch.stack([errD_real + errD_fake, errG]).detach()
            n = 0 if gangline.is_ghost() else len(data)
            curve.values.append(gangline.mean(errors, weight=n).tolist())
    if gangline.is_main():
        result = {"netG": netG.state_dict(), "netD": netD.state_dict(), "shown": curve.values}
        torch.save(result, os.environ.get("RESULT", "dcgan.pt"))


if __name__ == "__main__":
    main()
