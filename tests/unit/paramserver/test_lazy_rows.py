# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows come when they are used: what is read is what a whole pull would have brought."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from serving_workers import ALONE, entry, workers
from test_changed_rows import (
    BIAS,
    MAKERS,
    ROWS,
    TABLE,
    TABLE_BYTES,
    WIDTH,
    Plain,
    _tables,
    bias,
    sparse,
)

from cases import quick_of
from gangline.paramserver.service.lazy import MOST_HOT, WINDOW, LazyTable, LazyTables
from gangline.spec.errors import MismatchError, ServerLost
from wire_members import SHARED, TCP, WAYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serving_workers import Worker, Workers

    from gangline.collectives.wire import WireOptions

__all__ = ["_tables"]


def make_lazy(job: Workers) -> None:
    for worker in job:
        worker.client._pulled.lazy = LazyTables({TABLE: ROWS})
        worker.client.keep()


def use(worker: Worker, rows: Sequence[int], upto: int = 0, entries: Sequence[Any] = ()) -> None:
    wanted = torch.tensor(sorted(set(rows)))
    worker.client.count_use(TABLE, wanted)
    worker.client.fetch(TABLE, wanted, upto=upto, entries=entries)


@WAYS
def test_a_row_comes_when_it_is_used_and_has_changed(options: WireOptions) -> None:
    plain = Plain()
    with workers(2, options, make=MAKERS["sgd"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        make_lazy(job)
        client, table = job[1].client, job[1].parameters[TABLE]
        client.push(0, [sparse([5, 2, 900]), bias(0)])
        plain.step(sparse([5, 2, 900]), bias(0))
        client.traffic.take()
        client.pull(1, [entry(0, (1, 0, 1.0))])
        assert client.traffic.take().pulled == 7 * 4  # no row of the table
        assert torch.equal(job[1].parameters[BIAS], plain.parameters[BIAS])
        assert not torch.equal(table[2], plain.parameters[TABLE][2])
        use(job[1], [2, 3, 5])
        # Three rows are named, with a number of updates each; two of them come.
        assert client.traffic.take().pulled == 3 * 16 + 2 * (8 + 4 * WIDTH)
        assert torch.equal(table[[2, 3, 5]], plain.parameters[TABLE][[2, 3, 5]])
        assert not torch.equal(table[900], plain.parameters[TABLE][900])
        use(job[1], [2, 3, 5])
        assert client.traffic.take().num_fetches == 0
        assert client.lacks(TABLE, torch.tensor([2, 3, 900])).tolist() == [900]


def test_hot_rows_come_with_every_pull() -> None:
    with workers(2, SHARED, make=MAKERS["sgd"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        make_lazy(job)
        client = job[1].client
        entries = []
        for number in range(6):
            use(job[1], [7, 100 + number], number, entries)
            client.push(number, [sparse([7, 100 + number], number), None])
            entries.append(entry(number, (1, number, 1.0)))
            client.pull(number + 1, entries)
        assert client.written[TABLE].tolist() == [7]
        assert client.lacks(TABLE, torch.tensor([7, 100, 105])).tolist() == [100, 105]


def test_what_is_hot_is_measured_and_bounded() -> None:
    table = LazyTable(100)
    assert table.hot().tolist() == []
    for number in range(3 * WINDOW):
        often = [1, 2] if number % 4 else [1]
        table.count(torch.tensor([*often, 50 + number % 40]))
    assert table.hot().tolist() == [1, 2]
    for _ in range(WINDOW):
        table.count(torch.tensor([9]))
    assert table.hot().tolist() == [9]
    for number in range(WINDOW):
        table.count(torch.arange(0, 60 if number < 10 else 5))
    assert len(table.hot()) == int(100 * MOST_HOT)
    assert table.hot()[:5].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("own", [0, 1], ids=["near", "far"])
def test_everything_comes_where_all_are_to_be_alike(own: int) -> None:
    with workers(2, SHARED, make=MAKERS["sgd"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        make_lazy(job)
        plain, client = Plain(), job[own].client
        client.push(0, [sparse([5, 2, 900]), None])
        plain.step(sparse([5, 2, 900]), None)
        entries = [entry(0, (own, 0, 1.0))]
        client.pull(1, entries)
        assert client.kept_at == 0  # it has no whole table to keep
        client.spoil()
        client.pull(1, entries)
        assert plain.is_equal(job[own].parameters)
        assert client.kept_at == 1
        assert client.lacks(TABLE, torch.arange(ROWS)).tolist() == []


def test_what_a_loop_changes_by_itself_is_fetched_again() -> None:
    with workers(2, SHARED, make=MAKERS["sgd"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        make_lazy(job)
        table = job[1].parameters[TABLE]
        job[1].client.pull(0)
        with torch.no_grad():
            table[4] = 9.0
        job[1].client.pull(0)
        job[1].client.push(0, [sparse([8]), None])
        job[1].client.pull(1, [entry(0, (1, 0, 1.0))])
        use(job[1], [4, 8])
        plain = Plain()
        plain.step(sparse([8]), None)
        assert plain.is_equal(job[1].parameters)


def test_a_replica_and_a_reset_give_what_there_is() -> None:
    with workers(4, SHARED, make=MAKERS["sgd"], patience_s=0.4) as job:
        job.follow(job.serving(0, (0, 1)))
        make_lazy(job)
        client, entries = job[3].client, [entry(0, (3, 0, 1.0)), entry(1, (3, 1, 1.0))]
        client.push(0, [sparse([1, 2]), None])
        client.pull(1, entries[:1])
        client.push(1, [sparse([3], 1), None])
        client.pull(2, entries)
        job[0].die()
        with pytest.raises(ServerLost):
            use(job[3], [1, 3], 2, entries)
        job.follow(job.serving(1, (1, ALONE), lost=[0], applied=1))
        use(job[3], [1, 3], 2, entries)
        plain = Plain()
        plain.step(sparse([1, 2]), None)
        plain.step(sparse([3], 1), None)
        assert torch.equal(job[3].parameters[TABLE][[1, 3]], plain.parameters[TABLE][[1, 3]])
        job[1].die()
        job.follow(job.serving(2, (2, ALONE), lost=[0, 1], applied=0, source=3))
        client.restore()
        begun = Plain()  # what came since is void
        client.push(0, [sparse([6], 2), None])
        client.pull(1, [entry(0, (3, 0, 1.0))])
        use(job[3], range(10))
        begun.step(sparse([6], 2), None)
        assert begun.is_equal(job[3].parameters)


def test_wrong_rows_are_refused_by_name() -> None:
    with workers(2, SHARED, make=MAKERS["sgd"], names=["words.weight", "bias"]) as job:
        job.follow(job.serving(0, (0, ALONE)))
        make_lazy(job)
        job[1].client.push(0, [sparse([1]), None])
        job[1].client.pull(1, [entry(0, (1, 0, 1.0))])
        job[1].client._pulled.lazy = LazyTables({TABLE: ROWS + 5})
        job[1].client._pulled.lazy[TABLE].require(1)
        with pytest.raises(MismatchError, match=r"rows 1 to 3004 of words.weight"):
            job[1].client.fetch(TABLE, torch.tensor([1, ROWS + 4]))
        shard = job[0].host._held[0].shard
        with pytest.raises(MismatchError, match=r"2 rows of words.weight .* shape \(1,\)"):
            shard.changed_among(0, torch.tensor([1, 2]), torch.tensor([0]))


@pytest.mark.parametrize("seed", quick_of(range(6), quick=[1]))
def test_whoever_reads_sees_what_a_whole_pull_would_have_brought(seed: int) -> None:
    """Two teams push in turn and use random rows, a server dies; no update comes in between."""
    rng, plain = random.Random(seed), Plain()
    with workers(4, SHARED if seed % 2 else TCP, make=MAKERS["sgd"], patience_s=1.0) as job:
        job.follow(job.serving(0, (0, 1), (1, 2)))
        make_lazy(job)
        entries: list[Any] = []
        clocks = dict.fromkeys((2, 3), 0)
        for number in range(30):
            if number == 15:
                job[0].die()
                job.follow(job.serving(1, (1, 2), (1, 2), lost=[0], applied=len(entries)))
            team = rng.choice((2, 3))
            rows = [*range(8), *rng.sample(range(ROWS), 4)]
            used = sorted(rng.sample(rows, 6))
            use(job[team], used, len(entries), entries)
            assert torch.equal(job[team].parameters[TABLE][used], plain.parameters[TABLE][used])
            grads = [sparse(used, number), bias(number)]
            job[team].client.push(clocks[team], grads, entries=entries)
            entries.append(entry(number, (team, clocks[team], 1.0)))
            clocks[team] += 1
            plain.step(*grads)
            for one in (2, 3):
                job[one].client.pull(len(entries), entries)
        for team in clocks:
            assert job[team].client.traffic.take().pulled < TABLE_BYTES / 4
            job[team].client.spoil()
            job[team].client.pull(len(entries), entries)
            assert plain.is_equal(job[team].parameters)
