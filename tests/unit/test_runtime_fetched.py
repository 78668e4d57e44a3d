# SPDX-License-Identifier: Apache-2.0
"""Which batch a loop computes, when it has fetched several."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gangline.runtime.fetched import FetchedBatches
from gangline.runtime.handout import Handout
from gangline.spec.errors import UsageError


def handout(step: int, micro: int = 0, num_micros: int = 1) -> Handout:
    return Handout(0, step, 0, micro, num_micros, step, step + 1, step + 1, 1, 1)


class Loop:
    """A loop over single samples, and what is known of its batches."""

    def __init__(self, *, num_micros: int = 1, needs_step: bool = True) -> None:
        self.model = nn.Linear(3, 1)
        self.batches = FetchedBatches([self.model], needs_step=needs_step)
        self._num_micros = num_micros
        self._num_fetched = 0

    def fetch(self) -> Tensor:
        """What the training does when the loader is asked for a batch."""
        if self.batches.is_over:
            self.batches.drop()
            self.batches.take_up()
        step, micro = divmod(self._num_fetched, self._num_micros)
        self._num_fetched += 1
        sample = torch.randn(2, 3)
        self.batches.add(handout(step, micro, self._num_micros), 1.0, [sample])
        if self.batches.present is None:
            self.batches.take_up()
        return sample

    def backward(self, loss: Any) -> int:
        """Which batch the pass is taken to be of: how many were fetched before it."""
        for _ in range(self.batches.find(loss, is_weighed=True)):
            self.batches.drop()
            self.batches.take_up()
        self.batches.count_pass()
        assert self.batches.present is not None
        known = self.batches.present.handout
        return known.step * self._num_micros + known.micro

    def loss(self, sample: Tensor) -> Tensor:
        return self.model(sample).sum()


def test_a_plain_loop_computes_what_it_fetched_last() -> None:
    loop = Loop()
    for number in range(3):
        assert loop.backward(loop.loss(loop.fetch())) == number
        loop.batches.count_step()


def test_a_loss_is_older_than_what_was_fetched_after_it() -> None:
    loop = Loop()
    sample = loop.fetch()
    for number in range(3):
        losses = loop.loss(sample), loop.loss(sample)
        sample = loop.fetch()
        assert [loop.backward(loss) for loss in losses] == [number, number]
        loop.batches.count_step()


@pytest.mark.parametrize("seen", [lambda x: x, lambda x: x[:, :3], lambda x: x.clone()])
def test_a_model_is_given_the_tensors_of_a_batch_or_views_or_copies_of_them(seen: Any) -> None:
    loop = Loop()
    following = loop.fetch()
    for number in range(3):
        present, following = following, loop.fetch()
        assert loop.backward(loop.loss(seen(present))) == number
        loop.batches.count_step()


@pytest.mark.parametrize("seen", [lambda x: x, lambda x: x.clone()])
def test_batches_may_be_left_out(seen: Any) -> None:
    loop = Loop()
    for number in range(9):
        sample = loop.fetch()
        if number % 3 == 0:
            assert loop.backward(loop.loss(seen(sample))) == number
            loop.batches.count_step()


def test_a_window_may_be_fetched_whole() -> None:
    loop = Loop(num_micros=3)
    for first in (0, 3):
        window = [loop.fetch() for _ in range(3)]
        assert [loop.backward(loop.loss(sample)) for sample in window] == [
            first,
            first + 1,
            first + 2,
        ]
        loop.batches.count_step()


def test_it_is_said_once_when_only_the_order_tells_which_batch_is_computed() -> None:
    loop = Loop()
    following = loop.fetch()
    present, following = following, loop.fetch()
    with pytest.warns(UserWarning, match="fetched 2 batches before it computed the first"):
        assert loop.backward(loop.loss(present + 1)) == 0
    loop.batches.count_step()
    present, following = following, loop.fetch()
    assert loop.backward(loop.loss(present + 1)) == 1


def test_a_loss_that_is_scaled_after_another_fetch_is_of_the_batch_it_was_computed_from() -> None:
    loop = Loop()
    following = loop.fetch()
    for number in range(3):
        loss = loop.loss(following + 1)
        following = loop.fetch()
        assert loop.backward(loss * 16) == number  # as a GradScaler does, and without a warning
        loop.batches.count_step()


def test_one_backward_pass_for_several_batches_is_refused() -> None:
    loop = Loop()
    loss = loop.loss(loop.fetch())
    loss = loss + loop.loss(loop.fetch())
    with pytest.raises(UsageError, match="for the losses of several batches"):
        loop.backward(loss)


def test_a_loss_whose_batch_is_over_is_refused() -> None:
    loop = Loop()
    loss = loop.loss(loop.fetch())
    assert loop.backward(loss) == 0
    loop.batches.count_step()
    loop.fetch()
    with pytest.raises(UsageError, match="the batch it is of is over"):
        loop.backward(loss)


def test_fetching_in_another_thread_is_refused() -> None:
    loop = Loop()
    samples: list[Tensor] = []
    thread = threading.Thread(target=lambda: samples.append(loop.fetch()))
    thread.start()
    thread.join()
    with pytest.raises(UsageError, match="fetched in one thread and backward"):
        loop.backward(loop.loss(samples[0]))


def test_copies_of_a_model_know_nothing_of_its_batches() -> None:
    loop = Loop()
    present, _ = loop.fetch(), loop.fetch()
    for other in (copy.deepcopy(loop.model), pickle.loads(pickle.dumps(loop.model))):
        other(present)
    assert loop.batches.shown is loop.batches.newest, "nothing was recognised"
    loop.batches.close()
    assert not loop.model._forward_pre_hooks
