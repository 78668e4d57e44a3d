# SPDX-License-Identifier: Apache-2.0
"""An order of rows that stays within partitions: these are shuffled, and the rows in each."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch.utils.data import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.engines.spark.rows.index import RowIndex


PARTITIONS = "partitions"
"""What asks for this order."""


class PartsShuffled(Sampler[int]):
    """All rows once: a part of the epoch that is lent to a group lies in few files then."""

    def __init__(self, index: RowIndex) -> None:
        sizes = [part.num_rows for part in index.parts]
        self._spans = list(zip([0, *accumulate(sizes)], sizes, strict=False))

    def __len__(self) -> int:
        return sum(size for _, size in self._spans)

    def __iter__(self) -> Iterator[int]:
        for span in torch.randperm(len(self._spans)).tolist():
            start, size = self._spans[span]
            yield from (start + torch.randperm(size)).tolist()
