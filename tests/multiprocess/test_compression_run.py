# SPDX-License-Identifier: Apache-2.0
"""Training with compressed exchanges: members stay bit-equal, and the model is learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from bodies_compression import learn

from cases import quick_of
from gangline.spec.exchange.compression import Compression
from gangline.spec.exchange.structure import Structure
from tree_members import ring

if TYPE_CHECKING:
    from gangline.testing import WorkerPool

TREE, FLAT = ring(ring(0, 1), ring(2)), Structure.flat([0, 1, 2])


@pytest.mark.parametrize(
    ("structure", "name"),
    quick_of(
        [(TREE, "8-bit"), (TREE, "top-k(0.1)"), (FLAT, "powersgd(2)")],
        quick=[(TREE, "top-k(0.1)"), (FLAT, "powersgd(2)")],
    ),
)
def test_a_compressed_job_learns_and_its_members_stay_equal(
    structure: Structure, name: str, worker_pool: WorkerPool
) -> None:
    compressed = structure.compressed("top", Compression.parse(name))
    first, *others = worker_pool.run(learn, 3, args=(10,), structure=compressed)
    for state, losses in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(first[0], state, strict=True))
        assert losses == first[1]
    assert first[1][-1] < 0.5 * first[1][0]


@pytest.mark.slow
def test_without_a_name_nothing_is_compressed(worker_pool: WorkerPool) -> None:
    plain = worker_pool.run(learn, 3, args=(2,), structure=TREE)[0][0]
    half = TREE.compressed("top", Compression.parse("bf16"))
    near = worker_pool.run(learn, 3, args=(2,), structure=half)[0][0]
    assert all(
        torch.allclose(a.float(), b.float(), atol=0.05) for a, b in zip(plain, near, strict=True)
    )
    assert not all(torch.equal(a, b) for a, b in zip(plain, near, strict=True))
