# SPDX-License-Identifier: Apache-2.0
"""Which groups of a run shorten the gradients that they exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.exchange.compression import Compression
from gangline.spec.exchange.structure import Structure

if TYPE_CHECKING:
    from collections.abc import Sequence


def compressed(
    structure: Structure | None, given: Sequence[str], *, workers: int
) -> Structure | None:
    """The structure with what is given as `GROUP=CODEC`; None: all in one ring, nothing compressed."""
    if not given:
        return structure
    tree = structure or Structure.flat(range(workers))
    for one in given:
        group, _, codec = one.partition("=")
        tree = tree.compressed(group.strip(), Compression.parse(codec))
    return tree
