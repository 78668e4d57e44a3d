# SPDX-License-Identifier: Apache-2.0
"""Two small character-level language models, for losses that are weighted by tokens.

Both map token ids (N, T) to logits (N, T, vocab_size), each position seeing only those before it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CharGRU(nn.Module):
    """One GRU layer between an embedding and a linear read-out."""

    def __init__(self, vocab_size: int, *, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.recurrence = nn.GRU(width, width, batch_first=True)
        self.readout = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each position."""
        states, _ = self.recurrence(self.embedding(tokens))
        logits: Tensor = self.readout(states)
        return logits


class CharTransformer(nn.Module):
    """A decoder of pre-norm blocks with learned positions."""

    def __init__(
        self,
        vocab_size: int,
        *,
        context: int = 128,
        width: int = 64,
        num_heads: int = 4,
        depth: int = 2,
    ) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"width {width} must be a multiple of num_heads {num_heads}")
        self.context = context
        self.embedding = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(_Block(width, num_heads=num_heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each position."""
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(
                f"a sequence of {length} tokens does not fit into the context of {self.context}; "
                f"cut it, or build the model with context={length}"
            )
        places = torch.arange(length, device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        logits: Tensor = self.readout(self.norm(self.blocks(x)))
        return logits


class _Block(nn.Module):
    def __init__(self, width: int, *, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.to_queries_keys_values = nn.Linear(width, 3 * width)
        self.from_heads = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.to_queries_keys_values(self.attention_norm(x)).chunk(3, dim=-1)
        queries, keys, values = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts
        )
        heads = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.from_heads(heads.transpose(1, 2).flatten(2))
        out: Tensor = x + self.feed_forward(x)
        return out
