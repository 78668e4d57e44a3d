# SPDX-License-Identifier: Apache-2.0
"""An LSTM that carries its state from one piece of text to the next, and a hand-written update.

The columns of the text are the samples. Who computes a column changes from batch to batch, so their
states are in a table that all workers share.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

if os.environ.get("PLAIN"):
    import no_gangline as gangline
else:
    import gangline

TOKENS, EMBEDDING, HIDDEN, LAYERS = 15, 6, 8, 2
COLUMNS, BPTT, CLIP = 9, 5, 0.25

Hidden = tuple[Tensor, Tensor]


class RNNModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(TOKENS, EMBEDDING)
        self.rnn = nn.LSTM(EMBEDDING, HIDDEN, LAYERS)
        self.decoder = nn.Linear(HIDDEN, TOKENS)
        self.state = gangline.SampleState(COLUMNS, 2, LAYERS, HIDDEN)

    def forward(self, text: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        output, hidden = self.rnn(self.encoder(text), hidden)
        return self.decoder(output).view(-1, TOKENS), hidden

    def init_hidden(self, columns: int) -> Hidden:
        return torch.zeros(LAYERS, columns, HIDDEN), torch.zeros(LAYERS, columns, HIDDEN)


def repackage_hidden(hidden: Hidden) -> Hidden:
    """The same numbers without the history of how they came to be."""
    return hidden[0].detach(), hidden[1].detach()


def batchify(length: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.cumsum(torch.randint(0, 3, (length,), generator=generator), 0) % TOKENS
    rows = length // columns
    return tokens[: rows * columns].view(columns, rows).t().contiguous()


def get_batch(source: Tensor, i: int) -> tuple[Tensor, Tensor]:
    length = min(BPTT, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length]


def evaluate(model: RNNModel, source: Tensor, criterion: nn.Module) -> float:
    """The whole of a small text, on every worker."""
    model.eval()
    total = 0.0
    hidden = model.init_hidden(source.shape[1])
    with torch.no_grad():
        for i in range(0, len(source) - 1, BPTT):
            data, targets = get_batch(source, i)
            output, hidden = model(data, hidden)
            total += len(data) * criterion(output, targets.reshape(-1)).item()
    return total / (len(source) - 1)


def train(model: RNNModel, loader: Any, source: Tensor, lr: float) -> None:
    model.train()
    criterion = nn.CrossEntropyLoss()
    model.state.reset()
    for indices in loader:
        piece, columns = indices[0] // COLUMNS, [index % COLUMNS for index in indices]
        data, targets = get_batch(source[:, columns], piece * BPTT)
        model.zero_grad()
        h, c = model.state[columns].permute(1, 2, 0, 3).contiguous()
        output, hidden = model(data, repackage_hidden((h, c)))
        model.state[columns] = torch.stack(hidden).permute(2, 0, 1, 3)
        criterion(output, targets.reshape(-1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)


def main() -> None:
    torch.manual_seed(1111)
    torch.set_default_dtype(torch.float64)
    train_data = batchify(COLUMNS * 32, COLUMNS, seed=1)
    val_data = batchify(90, 3, seed=2)
    model = RNNModel()
    pieces = len(range(0, len(train_data) - 1, BPTT))

    loader = gangline.batches(pieces * COLUMNS, global_batch=COLUMNS)
    gangline.init()
    model, loader = gangline.prepare(model, loader)
    lr, best, curve = 2.0, float("inf"), []
    for _ in gangline.epochs(4):
        train(model, loader, train_data, lr)
        val_loss = evaluate(model, val_data, nn.CrossEntropyLoss())
        curve.append(val_loss)
        if val_loss < best:
            best = val_loss
        else:
            lr /= 4.0
    if gangline.is_main():
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        result = {"model": parameters, "curve": curve}
        torch.save(result, os.environ.get("RESULT", "model.pt"))


if __name__ == "__main__":
    main()
