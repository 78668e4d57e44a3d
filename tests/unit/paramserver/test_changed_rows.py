# SPDX-License-Identifier: Apache-2.0
"""Pulls bring the rows that have changed since the last one, and end where whole pulls would."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from serving_workers import ALONE, entry, workers
from test_service import wait_for
from torch import nn
from torch.optim import SGD, Adagrad, Adam

from cases import quick_of
from gangline.paramserver.service.changes import RowChanges, union
from gangline.paramserver.service.kept import Kept
from gangline.spec.errors import GradientError, MismatchError, ServerLost
from wire_members import SHARED, TCP, WAYS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from serving_workers import Worker, Workers
    from torch import Tensor

    from gangline.collectives.wire import WireOptions

ROWS, WIDTH = 3000, 16
TABLE, BIAS = 0, 1
TABLE_BYTES = ROWS * WIDTH * 4
MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "adagrad": lambda p: Adagrad(p, lr=0.1),
    "adam": lambda p: Adam(p, lr=0.01),
}


def table_model() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [
        nn.Parameter(torch.randn(ROWS, WIDTH, generator=generator)),
        nn.Parameter(torch.randn(7, generator=generator)),
    ]


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving_workers.model", lambda seed=0: table_model())


def sparse(rows: Sequence[int], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(rows), WIDTH, generator=generator)
    return torch.sparse_coo_tensor(
        torch.tensor([list(rows)]), values, (ROWS, WIDTH), check_invariants=True
    )


def bias(seed: int) -> Tensor:
    return torch.randn(7, generator=torch.Generator().manual_seed(500 + seed))


def whole_of(worker: Worker) -> list[Tensor]:
    """What a whole pull would bring, by a client that has read nothing."""
    client, before = worker.client, [p.detach().clone() for p in worker.parameters]
    client.spoil()
    client.pull(0)
    after = [p.detach().clone() for p in worker.parameters]
    with torch.no_grad():
        for parameter, value in zip(worker.parameters, before, strict=True):
            parameter.copy_(value)
    return after


def assert_whole(worker: Worker) -> None:
    found = [p.detach().clone() for p in worker.parameters]
    assert all(torch.equal(a, b) for a, b in zip(found, whole_of(worker), strict=True))


class Plain:
    """One plain optimizer that is given the same sparse gradients."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer] = MAKERS["sgd"]) -> None:
        self.parameters = table_model()
        self.optimizer = make(self.parameters)

    def step(self, *gradients: Tensor | None) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        with torch.sparse.check_sparse_tensor_invariants(enable=False):  # torch wants it to be said
            self.optimizer.step()

    def is_equal(self, parameters: Sequence[Tensor]) -> bool:
        pairs = zip(self.parameters, parameters, strict=True)
        return all(torch.equal(a.detach(), b.detach()) for a, b in pairs)


@WAYS
@pytest.mark.parametrize("maker", quick_of(["sgd", "adagrad"], quick=["sgd"]))
def test_a_pull_of_a_large_table_of_which_few_rows_changed_is_small(
    options: WireOptions, maker: str
) -> None:
    plain = Plain(MAKERS[maker])
    with workers(2, options, make=MAKERS[maker]) as job:
        job.follow(job.serving(0, (0, ALONE), (0, ALONE)))
        client = job[1].client
        client.pull(0)
        assert client.traffic.take().pulled == TABLE_BYTES + 7 * 4
        for number, rows in enumerate([[5, 2, 900], [2, 4], [2999]]):
            grads = [sparse(rows, number), bias(number)]
            client.push(number, grads)
            plain.step(*grads)
            assert client.traffic.take().pushed == len(rows) * (8 + 4 * WIDTH) + 7 * 4
            client.pull(number + 1, [entry(number, (1, number, 1.0))])
            assert client.traffic.take() == (0, len(rows) * (8 + 4 * WIDTH) + 7 * 4, 1, 0)
            assert plain.is_equal(job[1].parameters)
        assert sorted(client.written) == [TABLE, BIAS]
        assert client.written[TABLE].tolist() == [2999]
        assert client.written[BIAS] is None


@WAYS
@pytest.mark.parametrize("own", [0, 1], ids=["near", "far"])
def test_values_that_are_handed_out_are_whole_and_then_nothing_is_known_to_be_read(
    options: WireOptions, own: int
) -> None:
    plain = Plain()
    with workers(2, options, make=MAKERS["sgd"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        client, before = job[own].client, [p.detach().clone() for p in job[own].parameters]
        client.keep()
        client.pull(0)
        client.push(0, [sparse([5, 900]), bias(0)])
        plain.step(sparse([5, 900]), bias(0))
        came: list[tuple[int, Tensor]] = []
        client.pull(
            1,
            [entry(0, (own, 0, 1.0))],
            order=[BIAS, TABLE],
            on_value=lambda index, value: came.append((index, value.clone())),
        )
        assert [index for index, _ in came] == [BIAS, TABLE]
        assert plain.is_equal([value for _, value in reversed(came)])
        assert all(torch.equal(a, b) for a, b in zip(before, job[own].parameters, strict=True))
        assert (client.written, client.kept_at) == ({}, 1)
        client.pull(1, [entry(0, (own, 0, 1.0))])
        assert client.written == {TABLE: None, BIAS: None}
        assert plain.is_equal(job[own].parameters)
        client.pull(1, [entry(0, (own, 0, 1.0))], order=[BIAS, TABLE])
        assert {index: len(rows) for index, rows in client.written.items()} == {TABLE: 0, BIAS: 0}
        assert plain.is_equal(job[own].parameters)


def test_lost_shards_are_rebuilt_from_values_that_were_handed_out() -> None:
    plain = Plain()
    with workers(2, SHARED, make=MAKERS["sgd"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        client, entries = job[1].client, [entry(0, (1, 0, 1.0))]
        client.keep()
        client.push(0, [sparse([5, 900]), bias(0)])
        plain.step(sparse([5, 900]), bias(0))
        client.pull(1, entries, order=[BIAS, TABLE], on_value=lambda index, value: None)
        job[0].die()
        job.follow(job.serving(1, (1, ALONE), lost=[0], applied=1, source=1))
        client.restore()
        client.pull(1)
        assert plain.is_equal(job[1].parameters)


def test_who_has_not_read_for_long_is_given_the_rows_of_all_updates_since() -> None:
    with workers(3, SHARED, make=MAKERS["sgd"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        job[2].client.keep()
        entries = []
        for number, rows in enumerate([[1, 2], [2, 3], [7]]):
            job[1].client.push(number, [sparse(rows, number), None])
            entries.append(entry(number, (1, number, 1.0)))
            job[1].client.pull(number + 1, entries)
        job[2].client.pull(3, entries)
        assert job[2].client.written[TABLE].tolist() == [1, 2, 3, 7]
        assert job[2].client.written[BIAS].tolist() == []
        assert_whole(job[2])


@pytest.mark.parametrize("maker", ["sgd", "adam"])
def test_who_begins_with_the_same_needs_no_whole_pull(maker: str) -> None:
    """But for an optimizer that changes all rows whatever the gradient has."""
    with workers(2, SHARED, make=MAKERS[maker]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        job[1].client.keep()
        job[1].client.push(0, [sparse([4]), None])
        job[1].client.pull(1, [entry(0, (1, 0, 1.0))])
        written = job[1].client.written[TABLE]
        assert written is None if maker == "adam" else written.tolist() == [4]
        assert_whole(job[1])


def test_many_changed_rows_come_as_a_whole() -> None:
    with workers(2, SHARED, make=MAKERS["sgd"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        job[1].client.keep()
        job[1].client.push(0, [sparse(range(ROWS - 10)), None])
        job[1].client.pull(1, [entry(0, (1, 0, 1.0))])
        assert job[1].client.traffic.take().pulled == TABLE_BYTES
        assert job[1].client.written[TABLE] is None


@pytest.mark.parametrize("own", [0, 1], ids=["near", "far"])
def test_what_a_loop_changes_by_itself_is_overwritten_as_by_a_whole_pull(own: int) -> None:
    with workers(2, SHARED, make=MAKERS["sgd"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        client, table = job[own].client, job[own].parameters[TABLE]
        client.keep()
        client.pull(0)
        with torch.no_grad():
            table[17] += 1.0
        client.pull(0)
        assert_whole(job[own])
        client.pull(0)
        with torch.no_grad():
            table[[17, 40]] += 1.0
        client.note_own(TABLE, torch.tensor([17, 40]))
        client.pull(0)
        assert client.written[TABLE].tolist() == [17, 40]
        assert_whole(job[own])
        client.pull(0)
        table.data[3] += 1.0
        client.spoil()
        client.pull(0)
        assert_whole(job[own])


def test_a_replica_that_takes_over_knows_what_has_changed_since_it_was_loaded() -> None:
    plain = Plain()
    with workers(3, SHARED, make=MAKERS["sgd"], patience_s=0.5) as job:
        job.follow(job.serving(0, (0, 1)))
        client = job[2].client
        entries = []
        for number, rows in enumerate([[1, 2], [2, 3]]):
            grads = [sparse(rows, number), bias(number)]
            client.push(number, grads)
            plain.step(*grads)
            entries.append(entry(number, (2, number, 1.0)))
            client.pull(number + 1, entries)
        client.push(2, [sparse([8], 2), None])  # the server dies between push and pull
        job[0].die()
        with pytest.raises(ServerLost):
            client.pull(3, [entry(2, (2, 2, 1.0))])
        job.follow(job.serving(1, (1, ALONE), lost=[0], applied=2))
        client.traffic.take()
        client.pull(3, [*entries, entry(2, (2, 2, 1.0))])
        plain.step(sparse([8], 2), None)
        assert client.written[TABLE].tolist() == [8]
        assert client.traffic.take().pulled < TABLE_BYTES / 100
        assert plain.is_equal(job[2].parameters)
        job[1].client.pull(3, entries)
        assert plain.is_equal(job[1].parameters)


def test_a_copy_that_was_made_later_does_not_know_what_had_changed_before() -> None:
    plain = Plain()
    with workers(4, SHARED, make=MAKERS["sgd"], patience_s=0.5) as job:
        job.follow(job.serving(0, (0, ALONE)))
        job[3].client.keep()
        entries = [entry(number, (2, number, 1.0)) for number in range(2)]
        for number, rows in enumerate([[1, 2], [9]]):
            if number == 1:
                job.follow(job.serving(1, (0, 1), applied=1))
                wait_for(lambda: job[1].host.whole == (0,))
            job[2].client.push(number, [sparse(rows, number), None])
            plain.step(sparse(rows, number), None)
            job[2].client.pull(number + 1, entries[: number + 1])
        job[0].die()
        job.follow(job.serving(2, (1, ALONE), lost=[0], applied=2))
        job[3].client.pull(2, entries)  # it has read nothing since the beginning
        assert plain.is_equal(job[3].parameters)
        assert job[3].client.written[TABLE] is None


def test_what_is_kept_by_rows_is_no_longer_what_the_shard_has_handed_out() -> None:
    with workers(1, SHARED, make=MAKERS["sgd"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        client = job[0].client
        client.pull(0)
        (handed_out, _) = job[0].host._held[0].shard.values()
        before = handed_out.clone()
        client.push(0, [sparse([5]), None])
        client.pull(1, [entry(0, (0, 0, 1.0))])
        assert client.written[TABLE].tolist() == [5]
        assert torch.equal(handed_out, before)
        assert torch.equal(client._pulled.kept.values([TABLE])[0], job[0].parameters[TABLE])


def test_after_a_reset_the_same_numbers_mean_other_values() -> None:
    """What was read before the loss has the numbers of updates that come after it."""
    with workers(3, SHARED, make=MAKERS["sgd"], patience_s=0.4) as job:
        job.follow(job.serving(0, (0, ALONE), (1, ALONE)))
        for worker in job:
            worker.client.keep()
        first, second = [entry(0, (2, 0, 1.0))], entry(1, (2, 1, 1.0))
        job[2].client.push(0, [sparse([1, 2]), bias(0)])
        for worker in (job[1], job[2]):
            worker.client.pull(1, first)
        job[2].client.push(1, [sparse([3], 1), bias(1)], entries=first)
        job[1].client.pull(2, [*first, second])
        job[0].die()
        job.follow(job.serving(1, (1, ALONE), (1, ALONE), lost=[0], applied=1, source=2))
        job[2].client.restore()
        job[2].client.push(1, [sparse([6], 9), bias(9)])  # in the place of what is void
        job[1].client.pull(2, [second])
        job[2].client.pull(2, [second])
        plain = Plain()
        plain.step(sparse([1, 2]), bias(0))
        plain.step(sparse([6], 9), bias(9))
        assert plain.is_equal(job[2].parameters)
        assert plain.is_equal(job[1].parameters)


def test_what_is_kept_by_rows_is_what_a_whole_pull_would_have_kept() -> None:
    """Shards that answer at different updates are no cut: rows wait for the next one."""
    with workers(2, SHARED, make=MAKERS["sgd"], patience_s=0.4) as job:
        job.follow(job.serving(0, (0, ALONE), (0, ALONE)))
        for worker in job:
            worker.client.keep()
        entries = []
        for number, rows in enumerate([[1, 2], [2, 3], [9]]):
            job[1].client.push(number, [sparse(rows, number), bias(number)])
            entries.append(entry(number, (1, number, 1.0)))
            job[1].client.pull(number + 1, entries)
            if number == 1:  # the bias is at another update than the table
                job[1].client._pulled.kept.note(
                    {}, {TABLE: (torch.tensor([5]), torch.ones(1, WIDTH))}, {1, 2}
                )
                assert job[1].client.kept_at == 2
        assert job[1].client.kept_at == 3
        kept = job[1].client._pulled.kept.values([TABLE, BIAS])
        wanted = [p.detach().clone() for p in job[1].parameters]
        wanted[TABLE][5] = 1.0
        assert all(torch.equal(a, b) for a, b in zip(kept, wanted, strict=True))
        own = job[0].host._held[0].shard
        assert torch.equal(own.values()[0], own._updates.parameters[0])  # nobody wrote into it


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_wait_for_a_cut_are_put_in_order(seed: int) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    whole = torch.randn(12, 2, generator=generator)
    kept = Kept()
    kept.begin([whole])
    for number in range(40):
        is_cut, is_whole = rng.random() < 0.3, rng.random() < 0.1 or 0 in kept.missed
        rows = torch.tensor(sorted(rng.sample(range(12), rng.randint(0, 4))), dtype=torch.int64)
        values = torch.randn(len(rows), 2, generator=generator)
        whole[rows] = values
        given = ({0: whole.clone()}, {}) if is_whole else ({}, {0: (rows, values)})
        kept.note(*given, {number} if is_cut else {number, number + 1})
        if is_cut:
            assert kept.at == number
            assert torch.equal(kept.values([0])[0], whole)
        assert sum(len(rows) for rows, _ in kept._noted.get(0, [])) <= 2 * 12


@pytest.mark.parametrize("own", [0, 1], ids=["near", "far"])
def test_wrong_rows_are_refused_with_the_name_of_the_parameter(own: int) -> None:
    with workers(2, SHARED, make=MAKERS["sgd"], names=["words.weight", "bias"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        client = job[own].client
        client.keep()
        wrong = sparse([1])
        outside = torch.sparse_coo_tensor(
            torch.tensor([[ROWS]]), torch.ones(1, WIDTH), (ROWS + 1, WIDTH), check_invariants=True
        )
        with pytest.raises(MismatchError, match=r"rows 3000 to 3000 of words.weight.*0 to 2999"):
            client.push(0, [outside, None])
        with pytest.raises(MismatchError, match=r"words.weight is given as \(1, 16\) of float64"):
            client.push(0, [wrong.double(), None])
        narrow = torch.sparse_coo_tensor(
            torch.tensor([[1]]), torch.ones(1, 3), (ROWS, 3), check_invariants=True
        )
        with pytest.raises(MismatchError, match=r"words.weight is given as \(1, 3\)"):
            client.push(0, [narrow, None])
        with pytest.raises(GradientError, match=r"words.weight has values that are not finite"):
            client.push(0, [wrong * float("inf"), None])
        with torch.no_grad():
            job[own].parameters[TABLE].add_(0.0)
        client.note_own(TABLE, torch.tensor([4, ROWS]))
        with pytest.raises(MismatchError, match=r"rows 4 to 3000 of words.weight"):
            client.pull(0)
        client.spoil()
        client.push(0, [wrong, None])
        client.pull(1, [entry(0, (own, 0, 1.0))])


@pytest.mark.parametrize("seed", quick_of(range(6), quick=[0]))
def test_all_who_pull_at_different_times_end_where_one_optimizer_does(seed: int) -> None:
    """Three teams push and pull at random; a server dies, and its replica goes on."""
    rng, plain = random.Random(seed), Plain()
    options = SHARED if seed % 2 else TCP
    with workers(4, options, make=MAKERS["sgd"], patience_s=1.0) as job:
        job.follow(job.serving(0, (0, 1), (1, 2)))
        for worker in job:
            worker.client.keep()
        entries: list[Any] = []
        clocks = dict.fromkeys((1, 2, 3), 0)
        for number in range(24):
            if number == 12:
                _lose_first(job, len(entries))
            team = rng.choice(sorted(clocks))
            rows = rng.sample(range(ROWS), rng.randint(1, 5))
            grads = [sparse(rows, number), bias(number) if rng.random() < 0.5 else None]
            job[team].client.push(clocks[team], grads, entries=entries)
            entries.append(entry(number, (team, clocks[team], 1.0)))
            clocks[team] += 1
            plain.step(*grads)
            reader = job[rng.choice(sorted(clocks))]
            reader.client.pull(len(entries), entries)
            assert plain.is_equal(reader.parameters)
        for team in clocks:
            job[team].client.pull(len(entries), entries)
            assert plain.is_equal(job[team].parameters)
            assert job[team].client.traffic.take().pulled < 2 * TABLE_BYTES


def _lose_first(job: Workers, applied: int) -> None:
    """Worker 0 held the table."""
    job[0].die()
    job.follow(job.serving(1, (1, 2), (1, 2), lost=[0], applied=applied))


def test_rows_are_counted_from_where_something_is_known() -> None:
    changes = RowChanges([4, 4])
    assert changes.since(0, 0).tolist() == []
    changes.note(1, [torch.tensor([1, 3]), torch.empty(0, dtype=torch.int64)])
    changes.note(2, [torch.tensor([3]), None])
    assert changes.since(0, 0).tolist() == [1, 3]
    assert changes.since(0, 1).tolist() == [3]
    assert changes.since(0, 2).tolist() == []
    assert changes.since(1, 1) is None
    assert changes.since(1, 2).tolist() == []
    changes.begin_anew(5)
    assert changes.since(0, 4) is None
    assert changes.since(0, 5).tolist() == []
    changes.note(6, [torch.tensor([0]), torch.tensor([2])])
    assert changes.since(0, 5).tolist() == [0]
    assert union(torch.tensor([1, 4]), torch.tensor([0, 4])).tolist() == [0, 1, 4]
    assert union(None, torch.tensor([1])) is None
