# SPDX-License-Identifier: Apache-2.0
"""Cuts a batch that is smaller than the shares say: the last one of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.planning.allocation.proportional import proportional

if TYPE_CHECKING:
    from collections.abc import Sequence


def cut_shares(total: int, shares: Sequence[int], *, minimum: int = 1) -> list[int]:
    """Cuts a batch of `total` samples in proportion to `shares`: each part is 0 or at least `minimum`.

    The full batch is cut into exactly `shares`. A ragged one is cut in the same proportions; who would
    get fewer than `minimum` (2 where BatchNorm needs them) gets none.
    """
    if total == sum(shares):
        return list(shares)
    weights = [float(share) for share in shares]
    while True:
        parts = [int(part) for part in proportional(total, weights)]
        small = [index for index, part in enumerate(parts) if 0 < part < minimum]
        if not small or sum(weight > 0 for weight in weights) == 1:
            return parts
        weights[min(small, key=lambda index: (parts[index], -index))] = 0.0
