# SPDX-License-Identifier: Apache-2.0
"""Pulls in an order: each value is handed out when it is there, and not written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from serving_workers import ALONE, SHAPES, Reference, entry, gradients, workers

from gangline.paramserver.service.messages import LARGE_BYTES
from gangline.spec.errors import MismatchError
from wire_members import SHARED, WAYS

if TYPE_CHECKING:
    from torch import Tensor

    from gangline.collectives.wire import WireOptions

ORDER = [4, 1, 3, 0, 2]


@WAYS
def test_values_come_in_the_order_that_is_asked_for(options: WireOptions) -> None:
    reference = Reference()
    with workers(2, options) as job:
        job.follow(job.serving(0, (0, ALONE)))
        client = job[1].client
        before = [p.detach().clone() for p in job[1].parameters]
        client.push(0, gradients(0))
        reference.apply((1.0, gradients(0)))
        came: list[tuple[int, Tensor]] = []
        client.pull(
            1,
            [entry(0, (1, 0, 1.0))],
            order=ORDER,
            on_value=lambda index, value: came.append((index, value.clone())),
        )
        assert [index for index, _ in came] == ORDER
        assert reference.is_equal([value for _, value in sorted(came, key=lambda one: one[0])])
        assert all(torch.equal(a, b) for a, b in zip(before, job[1].parameters, strict=True))
        assert client.pulled_at == (1,)
        assert client.kept_at == 1


def test_a_worker_that_serves_hands_out_its_own_and_those_of_others() -> None:
    with workers(2, SHARED) as job:
        job.follow(job.serving(0, (0, ALONE), (1, ALONE)))
        came: list[int] = []
        job[0].client.pull(0, order=ORDER, on_value=lambda index, value: came.append(index))
        assert sorted(came) == list(range(len(SHAPES)))
        for indices in job[0].client._indices:
            assert [i for i in came if i in indices] == [i for i in ORDER if i in indices]


def test_an_order_of_other_parameters_is_refused() -> None:
    with workers(2, SHARED) as job:
        job.follow(job.serving(0, (0, ALONE)))
        with pytest.raises(MismatchError, match="in the order"):
            job[1].client.pull(0, order=[0, 1], on_value=lambda index, value: None)


def test_large_values_are_handed_out_before_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane's thread hands one out between two that it receives."""
    monkeypatch.setattr("gangline.paramserver.service.messages.LARGE_BYTES", 8)
    assert LARGE_BYTES > 8
    with workers(2, SHARED) as job:
        job.follow(job.serving(0, (0, ALONE)))
        landed: list[int] = []
        pool = job[1].client._pool
        take = pool.take

        def noted(num_bytes: int) -> Tensor:
            landed.append(-1)
            return take(num_bytes)

        monkeypatch.setattr(pool, "take", noted)
        job[1].client.pull(0, order=ORDER, on_value=lambda index, value: landed.append(index))
        large = [i for i in ORDER if torch.Size(SHAPES[i]).numel() * 4 >= 8]
        small = [i for i in ORDER if i not in large]
        assert [i for i in landed if i not in small] == [j for i in large for j in (-1, i)]
