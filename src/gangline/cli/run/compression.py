# SPDX-License-Identifier: Apache-2.0
"""Which groups of `gangline run` shorten the gradients that they exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import UsageError
from gangline.spec.exchange.compression import Compression
from gangline.spec.exchange.structure import Structure

if TYPE_CHECKING:
    from collections.abc import Sequence


def compressed(
    structure: Structure | None, given: Sequence[str], *, workers: int, is_planned: bool
) -> Structure | None:
    """The structure with what is given as `GROUP=CODEC`; None: all in one ring, nothing compressed.

    `is_planned` says that the structure is found while the job runs: its groups have no names yet.
    """
    if not given:
        return structure
    if is_planned:
        raise UsageError(
            f"--compress {given[0]} names a group of a structure that is planned while the job runs; "
            "give the structure, too: --structure flat, or a file that `gangline plan` wrote"
        )
    tree = structure or Structure.flat(range(workers))
    for one in given:
        group, equals, codec = one.partition("=")
        if not equals:
            raise UsageError(
                f"--compress {one} names no group and compression; write for example "
                "--compress top=powersgd(4)"
            )
        tree = tree.compressed(group.strip(), Compression.parse(codec))
    return tree
