# SPDX-License-Identifier: Apache-2.0
"""Whether two machines have the same data set, told by a few samples."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from checkpoint_jobs import INTRODUCTION
from torch.utils.data import Dataset, TensorDataset

from gangline.spec.errors import MismatchError
from gangline.worker.prepare import handshake
from gangline.worker.prepare.handshake import Introduction, compare
from gangline.worker.prepare.likeness import sample_digest

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.arange(80.0).reshape(20, 4)
PLAIN = TensorDataset(X, torch.arange(20))


class Drawn(Dataset[Any]):
    """Samples that a function makes."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.make(index)


def digest(make: Callable[[int], Any]) -> str:
    return sample_digest(Drawn(make), 20, 4)


def test_the_same_data_has_the_same_digest_and_other_data_another() -> None:
    found = sample_digest(PLAIN, 20, 4)
    assert len(found) == 16
    assert found == sample_digest(TensorDataset(X.clone(), torch.arange(20)), 20, 4)
    others = [
        TensorDataset(X + 1, torch.arange(20)),
        TensorDataset(X, torch.arange(20).flip(0)),
        TensorDataset(X.double(), torch.arange(20)),
        TensorDataset(X.reshape(20, 2, 2), torch.arange(20)),
    ]
    assert len({found, *(sample_digest(other, 20, 4) for other in others)}) == 5


def test_last_bits_do_not_count() -> None:
    bent = X * (1 + 1e-6 * torch.rand_like(X))
    assert sample_digest(PLAIN, 20, 4) == sample_digest(
        TensorDataset(bent, torch.arange(20)), 20, 4
    )


def test_the_first_and_the_last_sample_are_among_those_that_are_asked_for() -> None:
    data = Drawn(lambda index: index)
    sample_digest(data, 20, 4)
    assert set(data.asked) == {0, 6, 12, 19}


def test_random_numbers_of_the_script_go_on_as_if_nothing_was_drawn() -> None:
    def noisy(index: int) -> Any:
        return torch.rand(3), random.random(), np.random.rand(3), index

    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = digest(noisy)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    torch.manual_seed(2)
    random.seed(2)
    assert digest(noisy) == first != ""


def test_what_cannot_be_compared_is_not() -> None:
    own = np.random.default_rng(0)
    assert digest(lambda index: own.random(3)) == ""
    assert digest(lambda index: {}[index]) == ""
    assert sample_digest(PLAIN, 20, 0) == sample_digest(PLAIN, 0, 4) == ""


@pytest.mark.parametrize(
    "sample",
    [
        {"x": torch.ones(2, dtype=torch.bfloat16), "name": "a", "parts": [1, None, b"x", 0.5]},
        np.arange(6, dtype=np.uint8).reshape(2, 3),
        torch.tensor([True, False]),
        torch.tensor(3),
        torch.zeros(0, 4),
        object,
    ],
)
def test_samples_of_all_kinds_are_told(sample: Any) -> None:
    assert digest(lambda index: sample) != ""


def told(**changes: Any) -> Introduction:
    return msgspec.structs.replace(INTRODUCTION, **changes)


def compared(monkeypatch: pytest.MonkeyPatch, *members: Introduction) -> None:
    payloads = [msgspec.msgpack.encode(one) for one in members]
    monkeypatch.setattr(handshake, "gather_bytes", lambda group, mine: payloads)
    compare(None, members[0])  # type: ignore[arg-type]


def test_founders_with_other_data_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = told(data_set_samples="a"), told(data_set_samples="b")
    with pytest.raises(MismatchError, match="worker 1 differs from worker 0 in data set samples"):
        compared(monkeypatch, one, other)
    compared(monkeypatch, one, one, told())  # one that does not compare is not compared with


def test_a_worker_may_leave_its_torch_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MismatchError, match="torch version"):
        compared(monkeypatch, told(), told(torch_version="3"))
    compared(monkeypatch, told(), told(torch_version=""))
    assert "torch_version" not in told(torch_version="").traits()
    assert "data_set_samples" not in told().traits()
    assert told(data_set_samples="a").traits()["data_set_samples"] == "'a'"
