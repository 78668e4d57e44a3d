# SPDX-License-Identifier: Apache-2.0
"""Every row is somebody's, and counts once per epoch, whoever is lost or late."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.paramserver.functional.arguments import SCHEMES
from gangline.paramserver.functional.ledger import Ledger, Portion
from gangline.paramserver.functional.partition import partition


@pytest.mark.parametrize("scheme", SCHEMES)
@given(rows=st.integers(1, 40), workers=st.integers(1, 9), seed=st.integers(0, 99))
def test_no_row_is_lost(scheme: str, rows: int, workers: int, seed: int) -> None:
    workers = min(rows, workers)
    parts = partition(scheme, rows=rows, workers=workers, seed=seed)
    copies = workers if scheme == "overlap_reshuffle" else 1
    assert Counter(np.concatenate(parts).tolist()) == dict.fromkeys(range(rows), copies)
    assert len(parts) == workers
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    again = partition(scheme, rows=rows, workers=workers, seed=seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


def test_five_rows_on_four_workers() -> None:
    parts = partition("disjoint_contiguous", rows=5, workers=4, seed=0)
    assert [part.tolist() for part in parts] == [[0, 1], [2], [3], [4]]


def test_reshuffled_copies_differ_between_workers_and_seeds() -> None:
    parts = [
        part.tolist()
        for seed in (0, 1)
        for part in partition("overlap_reshuffle", rows=30, workers=3, seed=seed)
    ]
    assert len({tuple(part) for part in parts}) == 6


@given(
    rows=st.integers(1, 30),
    workers=st.integers(1, 4),
    batch_size=st.integers(1, 5),
    per_push=st.sampled_from([1, 2, None]),
    epochs=st.integers(1, 3),
    in_step=st.booleans(),
    shared=st.booleans(),
    rng=st.randoms(use_true_random=False),
)
def test_each_row_counts_once_per_epoch(
    rows, workers, batch_size, per_push, epochs, in_step, shared, rng
) -> None:
    workers = min(rows, workers)
    parts = partition("disjoint_contiguous", rows=rows, workers=workers, seed=0)
    options = {"batch_size": batch_size, "per_push": per_push, "epochs": epochs}
    options |= {"in_step": in_step, "shared": shared}
    ledger = Ledger(parts, **options)
    applied: Counter[tuple[int, int]] = Counter()
    under_way: dict[int, Portion] = {}
    living = set(range(workers))
    over: list[int] = []
    while not ledger.is_done:
        worker = rng.choice(sorted(living))
        action = rng.choice(["go"] * 20 + ["late", "late", "lose", "keep"])
        if action == "lose" and len(living) > 1:
            living.remove(worker)
            if worker in under_way:
                ledger.give_back(under_way.pop(worker))
            ledger.lose(worker)
        elif action == "keep" and len(living) == workers:
            ledger = Ledger(parts, **options, done=ledger.done)
            under_way.clear()
        elif worker not in under_way:
            works = [ledger.has_work(one, others_idle=False) for one in sorted(living)]
            assert any(works) or under_way, "there is work for somebody"
            portion = ledger.take(worker, others_idle=False)
            if portion is not None:
                under_way[worker] = portion
        elif action == "late":
            ledger.give_back(under_way.pop(worker), late=worker)
        else:
            portion = under_way.pop(worker)
            for batch in portion.batches:
                applied.update((portion.epoch, row) for row in batch.tolist())
            if ledger.apply(portion):
                over.append(portion.epoch)
    assert applied == {(epoch, row): 1 for epoch in range(epochs) for row in range(rows)}
    assert sorted(over) == list(range(epochs))
    assert not in_step or over == sorted(over)


def test_who_was_late_with_rows_leaves_them_to_who_has_nothing_to_do() -> None:
    ledger = Ledger([np.arange(2)], batch_size=2, per_push=1, epochs=1, in_step=True)
    portion = ledger.take(0, others_idle=False)
    assert portion is not None
    ledger.give_back(portion, late=0)
    assert ledger.take(0, others_idle=True) is None
    assert ledger.take(0, others_idle=False) == portion


def test_who_has_no_rows_left_helps_who_has_most() -> None:
    parts = [np.arange(1), np.arange(1, 6), np.arange(6, 9)]
    ledger = Ledger(parts, batch_size=1, per_push=1, epochs=1, in_step=True, shared=True)
    taken = [ledger.take(0, others_idle=False) for _ in range(4)]
    assert [(one.owner, one.index) for one in taken if one] == [(0, 0), (1, 4), (1, 3), (1, 2)]


def test_portions_are_cut_by_the_frequency() -> None:
    for per_push, sizes in ((1, [4, 4, 2]), (2, [8, 2]), (None, [10])):
        ledger = Ledger([np.arange(10)], batch_size=4, per_push=per_push, epochs=1, in_step=True)
        taken = [ledger.take(0, others_idle=False) for _ in sizes]
        assert [one.num_rows for one in taken if one] == sizes
        assert ledger.take(0, others_idle=False) is None
