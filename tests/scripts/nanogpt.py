# SPDX-License-Identifier: Apache-2.0
"""A small GPT: batches by random places in the text, the next one fetched before `backward`."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

PLAIN = bool(os.environ.get("PLAIN"))
if PLAIN:
    import no_gangline as gangline
else:
    import gangline

batch_size, block_size = 4, 8  # of one micro-batch
gradient_accumulation_steps = 3
n_layer, n_head, n_embd, vocab_size = 2, 2, 16, 20
learning_rate, min_lr, warmup_iters, max_iters = 1e-2, 1e-3, 3, 18
eval_interval, grad_clip, weight_decay = 6, 0.5, 0.1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            part.unflatten(2, (n_head, -1)).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(n_embd, dim=2)
        ]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(*(Block() for _ in range(n_layer)))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        parameters = list(self.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def text(length: int, seed: int) -> Tensor:
    """Characters that follow one another by a rule, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 3, (length,), generator=generator)
    return torch.cumsum(steps, 0) % vocab_size


def get_batch(data: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.stack([data[i : i + block_size] for i in places.tolist()])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in places.tolist()])
    return x, y


def get_lr(it: int) -> float:
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss(model: nn.Module, data: Tensor) -> float:
    model.eval()
    places = torch.arange(0, len(data) - block_size - 1, block_size)
    loss, count = 0.0, 0
    for (some,) in gangline.evaluate(
        DataLoader(torch.utils.data.TensorDataset(places), batch_size=batch_size)
    ):
        loss += model(*get_batch(data, some))[1].item() * len(some)
        count += len(some)
    model.train()
    return gangline.mean(loss / max(count, 1), weight=count)


def main() -> None:
    torch.manual_seed(1337)
    torch.set_default_dtype(torch.float64)
    train_data, val_data = text(400, seed=1), text(100, seed=2)
    model = GPT()
    optimizer = model.configure_optimizers()
    scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=16.0, growth_interval=5)
    ctx = nullcontext()  # autocast knows no float64
    curve = []

    # All random places of the run are drawn at once, so that every worker has the same.
    per_iter = batch_size * gradient_accumulation_steps
    places = torch.randint(len(train_data) - block_size, (max_iters * per_iter,))
    loader = gangline.batches(len(places), global_batch=batch_size if PLAIN else per_iter)
    gangline.init()
    model, optimizer, loader = gangline.prepare(
        model,
        optimizer,
        loader,
        accumulate=gradient_accumulation_steps,
        stateful=[scaler],
    )
    batches = iter(loader)
    X, Y = get_batch(train_data, places[next(batches)])  # noqa: N806
    for iter_num in gangline.steps(max_iters):
        lr = get_lr(iter_num)
        for param_group in optimizer.param_groups:
            param_group["lr"] = lr
        if iter_num % eval_interval == 0:
            curve.append(estimate_loss(model, val_data))
        for _ in range(gradient_accumulation_steps):
            with ctx:
                _, loss = model(X, Y)
                if PLAIN:
                    loss = loss / gradient_accumulation_steps
            indices = next(batches, None)  # while the model computes
            if indices is not None:
                X, Y = get_batch(train_data, places[indices])  # noqa: N806
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    curve.append(estimate_loss(model, val_data))
    if gangline.is_main():
        result = {"model": model.state_dict(), "scale": scaler.get_scale(), "curve": curve}
        torch.save(result, os.environ.get("RESULT", "ckpt.pt"))


if __name__ == "__main__":
    main()
