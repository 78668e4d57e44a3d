# SPDX-License-Identifier: Apache-2.0
"""A trainer that fetches all batches of an accumulation window first, and counts their tokens."""

from __future__ import annotations

import os
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

PLAIN = bool(os.environ.get("PLAIN"))
if PLAIN:
    import no_gangline as gangline
else:
    import gangline

VOCABULARY, WIDTH, LENGTH, IGNORE = 17, 8, 7, -100
PER_DEVICE_BATCH, ACCUMULATION = 5, 3


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(input_ids))))


def texts(count: int, seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(2, LENGTH + 1, (), generator=generator))
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)
        labels = torch.where(torch.arange(LENGTH) < length, (ids * 3 + 1) % VOCABULARY, IGNORE)
        found.append({"input_ids": ids, "labels": labels})
    return found


def num_items(batch: dict[str, Tensor]) -> float:
    return float((batch["labels"] != IGNORE).sum())


class Trainer:
    def __init__(self, model: Model, train: list[Any], evaluation: list[Any]) -> None:
        self.model = model
        self.train_loader: Any = DataLoader(train, batch_size=PER_DEVICE_BATCH, shuffle=True)  # type: ignore[arg-type]
        self.eval_loader: Any = DataLoader(evaluation, batch_size=8)  # type: ignore[arg-type]
        self.optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.03)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: max(0.0, 1 - step / 40)
        )
        self.log_history: list[float] = []

    def compute_loss(self, batch: dict[str, Tensor], num_items_in_batch: float) -> Tensor:
        logits = self.model(batch["input_ids"]).flatten(0, 1)
        total = F.cross_entropy(
            logits, batch["labels"].flatten(), ignore_index=IGNORE, reduction="sum"
        )
        # gangline weighs the batches by their tokens itself
        return total / (num_items_in_batch if PLAIN else max(num_items(batch), 1))

    def train(self, epochs: int) -> None:
        gangline.init()
        self.model, self.optimizer, self.train_loader = gangline.prepare(
            self.model,
            self.optimizer,
            self.train_loader,
            global_batch=PER_DEVICE_BATCH * ACCUMULATION,
            accumulate=ACCUMULATION,
            weight=num_items,
            stateful=[self.lr_scheduler],
        )
        for _ in gangline.epochs(epochs):
            epoch_iterator = iter(self.train_loader)
            while batch_samples := list(islice(epoch_iterator, ACCUMULATION)):
                num_items_in_batch = sum(num_items(batch) for batch in batch_samples)
                for inputs in batch_samples:
                    self.compute_loss(inputs, num_items_in_batch).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.lr_scheduler.step()
                self.model.zero_grad()
            self.evaluate()

    @torch.no_grad()
    def evaluate(self) -> None:
        total, tokens = 0.0, 0.0
        for batch in gangline.evaluate(self.eval_loader):
            logits = self.model(batch["input_ids"]).flatten(0, 1)
            labels = batch["labels"].flatten()
            total += F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum").item()
            tokens += num_items(batch)
        self.log_history.append(gangline.mean(total / max(tokens, 1), weight=tokens))


def main() -> None:
    torch.manual_seed(8)
    torch.set_default_dtype(torch.float64)
    trainer = Trainer(Model(), texts(69, seed=1), texts(20, seed=2))
    trainer.train(epochs=3)
    if gangline.is_main():
        result = {"model": trainer.model.state_dict(), "curve": trainer.log_history}
        torch.save(result, os.environ.get("RESULT", "trainer.pt"))


if __name__ == "__main__":
    main()
