# SPDX-License-Identifier: Apache-2.0
"""Which batch a loop computes, when it has fetched several."""

from __future__ import annotations

import copy
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gangline.spec.errors import UsageError
from gangline.worker.samples.fetched import FetchedBatches
from gangline.worker.samples.handout import Handout
from gangline.worker.samples.model_calls import ModelCalls


def handout(step: int, micro: int = 0, num_micros: int = 1) -> Handout:
    return Handout(0, step, 0, micro, num_micros, step, step + 1, step + 1, 1, 1)


class Loop:
    """A loop over single samples, and what is known of its batches."""

    def __init__(self, *, num_micros: int = 1, needs_step: bool = True) -> None:
        self.model = nn.Linear(3, 1)
        self.batches = FetchedBatches([self.model], needs_step=needs_step)
        self._num_micros = num_micros
        self._num_fetched = 0

    def fetch(self, sample: Tensor | None = None) -> Tensor:
        """What the training does when the loader is asked for a batch."""
        if self.batches.is_over:
            self.batches.drop()
            self.batches.take_up()
        step, micro = divmod(self._num_fetched, self._num_micros)
        self._num_fetched += 1
        sample = torch.randn(2, 3) if sample is None else sample
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
    assert not loop.model._forward_hooks


# --- batches in another order, several in one pass, calls without gradients -------------------------


@pytest.mark.parametrize("seen", [lambda x: x, lambda x: x[1:], lambda x: x.clone()])
@pytest.mark.parametrize("fetches_between", [False, True])
def test_a_batch_that_is_computed_after_a_later_one_is_refused(
    seen: Any, fetches_between: bool
) -> None:
    loop = Loop()
    first, second = loop.fetch(), loop.fetch()
    assert loop.backward(loop.loss(seen(second))) == 1
    loop.batches.count_step()
    if fetches_between:
        loop.fetch()
    with pytest.raises(UsageError, match=r"batch of step 0 after the batch of step 1, .* order"):
        loop.backward(loop.loss(seen(first)))


def test_a_window_that_is_computed_backwards_is_refused() -> None:
    loop = Loop(num_micros=3)
    window = [loop.fetch() for _ in range(3)]
    assert loop.backward(loop.loss(window[2])) == 2
    with pytest.raises(UsageError, match="of step 0, part 2 after the batch of step 0, part 3"):
        loop.backward(loop.loss(window[1]))


def test_a_batch_that_was_left_out_may_be_evaluated() -> None:
    loop = Loop()
    first, second = loop.fetch(), loop.fetch()
    assert loop.backward(loop.loss(second)) == 1
    loop.batches.count_step()
    third = loop.fetch()
    with torch.no_grad():
        loop.loss(first)
    loss = loop.loss(third)
    loop.loss(first)  # with a graph, of which no pass is made
    assert loop.backward(loss) == 2


def test_batches_with_the_values_of_one_that_was_left_out_are_no_such_batches() -> None:
    loop = Loop()
    samples = [loop.fetch(torch.ones(2, 3)) for _ in range(2)]
    assert loop.backward(loop.loss(samples[1])) == 1
    loop.batches.count_step()
    samples.append(loop.fetch(torch.ones(2, 3)))
    assert loop.backward(loop.loss(samples[2].clone())) == 2


def kept_samples(samples: list[weakref.ref[Tensor]]) -> int:
    return sum(sample() is not None for sample in samples)


@pytest.mark.parametrize(("every", "most"), [(1, 1), (2, 8)])
def test_the_tensors_of_batches_are_kept_for_a_short_while(every: int, most: int) -> None:
    loop = Loop()
    samples: list[weakref.ref[Tensor]] = []
    for number in range(30):
        sample = loop.fetch()
        samples.append(weakref.ref(sample))
        if number % every == 0:
            loop.backward(loop.loss(sample))
            loop.batches.count_step()
        del sample
        assert kept_samples(samples) <= most
    loop.batches.clear()
    assert kept_samples(samples) == 0


def test_one_pass_for_several_batches_is_refused_when_the_loop_is_known_to_fetch_ahead() -> None:
    loop = Loop()
    following = loop.fetch()
    for number in range(3):
        present, following = following, loop.fetch()
        assert loop.backward(loop.loss(present)) == number
        loop.batches.count_step()
    present, following = following, loop.fetch()
    loss = loop.loss(present) + loop.loss(following)
    with pytest.raises(UsageError, match="for the losses of several batches"):
        loop.backward(loss)


def test_one_pass_for_several_batches_is_refused_after_a_pass_of_one_of_them() -> None:
    loop = Loop(num_micros=2)
    first, second = loop.fetch(), loop.fetch()
    losses = loop.loss(first), loop.loss(first), loop.loss(second)
    assert loop.backward(losses[0]) == 0
    with pytest.raises(UsageError, match="for the losses of several batches"):
        loop.backward([losses[1], losses[2]])


def test_the_graph_is_looked_at_only_where_models_were_given_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Any] = []
    monkeypatch.setattr(ModelCalls, "owners", lambda self, losses: looks.append(losses) or set())
    loop = Loop()
    following = loop.fetch()
    for _ in range(5):
        present, following = following, loop.fetch()
        loop.backward(loop.loss(present))
        loop.batches.count_step()
    assert not looks
    losses = loop.loss(following), loop.loss(loop.fetch())
    loop.backward(losses[0])
    assert len(looks) == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_call_without_gradients_does_not_tell_which_batch_is_computed(mode: Any) -> None:
    loop = Loop()
    following = loop.fetch()
    for number in range(3):
        present, following = following, loop.fetch()
        outputs = loop.model(present)
        shown = loop.batches.shown
        with mode():
            loop.model(following)
        assert loop.batches.shown is shown
        assert loop.backward(outputs.sum()) == number
        loop.batches.count_step()


def test_a_call_without_gradients_is_of_the_batch_that_it_is_given_while_it_runs() -> None:
    loop = Loop()
    samples = [loop.fetch() for _ in range(3)]
    seen: list[Any] = []
    loop.model.register_forward_pre_hook(lambda *_: seen.append(loop.batches.forwarded))
    with torch.no_grad():
        loop.model(samples[1])
    loop.model(samples[0])
    assert [batch.handout.step for batch in seen] == [1, 0]


def test_a_graph_is_of_what_the_model_was_given_not_of_what_was_given_last() -> None:
    loop = Loop()
    following = loop.fetch()
    for number in range(3):
        present, following = following, loop.fetch()
        outputs = loop.model(present)
        loop.model(following)  # somebody forgot torch.no_grad()
        assert loop.backward(outputs.sum()) == number
        loop.batches.count_step()


def test_a_model_in_a_reentrant_checkpoint_is_recognised() -> None:
    loop = Loop()
    samples = [loop.fetch().requires_grad_() for _ in range(3)]
    loss = checkpoint(loop.model, samples[1], use_reentrant=True).sum()
    assert loop.backward(loss) == 1


def test_a_call_that_failed_makes_no_part_of_a_loss() -> None:
    loop = Loop()
    present, following = loop.fetch(), loop.fetch()
    with pytest.raises(RuntimeError):
        loop.model(following[:, :2])
    loss = loop.loss(present)
    loop.loss(following)
    assert loop.backward(loss) == 0
