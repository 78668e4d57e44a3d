# SPDX-License-Identifier: Apache-2.0
"""Queues: whose chunks are whose, who is stolen from, and what happens to what is put back."""

from __future__ import annotations

import pytest

from gangline.scheduling import Choice, Chunk, Partitioner, WorkQueues, parse_scheme, parse_victims
from gangline.scheduling.queues import cut_blocks
from gangline.spec.errors import UsageError

GROUPS = [7, 7, 9, 9]


def queues_of(scheme: str, total: int, *, workers: int = 4, **given) -> WorkQueues:
    rest = {name: given.pop(name) for name in ("groups", "weights", "seed") if name in given}
    return WorkQueues(Choice.parse(scheme, **given), total=total, workers=workers, **rest)


def test_one_queue_serves_all():
    queues = queues_of("STATIC", 8)
    assert [queues.take(worker) for worker in (3, 1)] == [Chunk(0, 2), Chunk(2, 4)]
    assert not queues.is_stolen(3, Chunk(0, 2))


def test_each_worker_has_a_block_of_its_own():
    queues = queues_of("SS", 10, layout="PERCPU")
    assert [queues.take(worker) for worker in range(4)] == [
        Chunk(0, 1, 0),
        Chunk(2, 3, 1),
        Chunk(5, 6, 2),
        Chunk(8, 9, 3),
    ]


def test_each_group_has_a_queue():
    queues = queues_of("SS", 10, layout="PERGROUP", groups=GROUPS)
    taken = [queues.take(worker) for worker in range(4)]
    assert taken == [Chunk(0, 1, 0), Chunk(1, 2, 0), Chunk(5, 6, 1), Chunk(6, 7, 1)]


def test_groups_may_be_interleaved():
    queues = queues_of("SS", 10, layout="PERGROUP", groups=[1, 0, 1, 0])
    assert [chunk.queue for worker in range(4) if (chunk := queues.take(worker))] == [0, 1, 0, 1]


def test_blocks_are_in_proportion_to_weights():
    queues = queues_of("STATIC", 100, workers=2, layout="PERCPU", weights=[4, 1])
    assert queues.take(1) == Chunk(80, 90, 1)
    assert cut_blocks(10, [1, 1, 1]) == [(0, 3), (3, 7), (7, 10)]
    assert cut_blocks(0, [1, 2]) == [(0, 0), (0, 0)]
    assert cut_blocks(1, [0.1] * 10)[-1][1] == 1


def test_chunks_may_be_dealt_beforehand_one_after_the_other():
    queues = queues_of("SS", 6, workers=2, grain=2, layout="PERCPU", pre_partition=False)
    assert queues.take(0) == Chunk(0, 2, 0)
    assert queues.take(1) == Chunk(2, 4, 1)
    assert queues.take(0) == Chunk(4, 6, 0)
    assert queues.take(0) is None


@pytest.mark.parametrize(("rule", "victims"), [("SEQ", [1, 2, 3, 0]), ("SEQPRI", [1, 0, 3, 2])])
def test_sequential_rules_steal_from_the_next_around(rule, victims):
    """Of four full queues but one's own; SEQPRI goes to its own group (7 7 9 9) first."""
    for own, expected in enumerate(victims):
        queues = queues_of("STATIC", 4, layout="PERCPU", victims=rule, groups=GROUPS)
        assert queues.take(own).queue == own
        stolen = queues.take(own)
        assert stolen.queue == expected
        assert queues.is_stolen(own, stolen)
        assert queues.is_near(own, stolen) == (GROUPS[expected] == GROUPS[own])


def test_random_rules_steal_from_anybody_and_are_the_same_with_the_same_seed():
    def order(rule: str, seed: int) -> list[int]:
        queues = queues_of(
            "SS", 40, workers=8, layout="PERCPU", victims=rule, groups=[0] * 4 + [1] * 4, seed=seed
        )
        taken = iter(lambda: queues.take(0), None)
        return [chunk.queue for chunk in taken]

    assert order("RANDOM", 1) == order("RANDOM", 1) != order("RANDOM", 2)
    assert set(order("RANDOM", 1)) == set(range(8))
    near_first = order("RANDOMPRI", 3)
    assert set(near_first[:20]) == {0, 1, 2, 3}
    assert set(near_first[20:]) == {4, 5, 6, 7}
    assert near_first[5:20] != sorted(near_first[5:20])


def test_a_thief_comes_back_to_its_own_queue_when_something_is_put_back():
    queues = queues_of("STATIC", 4, workers=2, layout="PERCPU")
    own = queues.take(0)
    queues.take(0)
    queues.put_back(own)
    assert queues.take(0) == own
    stolen = queues.take(0)
    assert stolen.queue == 1


def test_what_is_put_back_goes_to_the_next_who_asks():
    partitioner = Partitioner(10, parse_scheme("SS").make(10, 2, grain=4))
    first = partitioner.take(0)
    partitioner.take(1)
    partitioner.put_back(first._replace(start=1))
    partitioner.put_back(Chunk(4, 4))
    assert partitioner.remaining == 5
    assert [partitioner.take(1), partitioner.take(1), partitioner.take(1)] == [
        Chunk(1, 4),
        Chunk(8, 10),
        None,
    ]


def test_scheme_and_grain_may_change_within_a_loop():
    queues = queues_of("SS", 100, workers=2)
    queues.take(0)
    queues.switch(Choice.parse("STATIC", grain=60))
    assert queues.take(0) == Chunk(1, 61)
    assert str(queues.choice) == "STATIC, grain 60, CENTRALIZED"
    with pytest.raises(UsageError, match="cannot become PERCPU within a loop"):
        queues.switch(Choice.parse("STATIC", layout="PERCPU"))
    dealt = queues_of("SS", 100, layout="PERCPU", pre_partition=False)
    with pytest.raises(UsageError, match="cannot be cut anew"):
        dealt.switch(Choice.parse("STATIC", layout="PERCPU"))


def test_the_scheme_of_the_queue_that_a_chunk_came_from_learns():
    queues = queues_of("AWF-C", 800, workers=2, layout="PERCPU")
    queues.finished(0, Chunk(0, 100, 0), 10.0)
    queues.finished(1, Chunk(0, 100, 0), 40.0)
    assert queues.take(0).size == 160, "1.6 times 400/4"
    assert queues.take(1).size == 100, "its own queue has heard nothing"


def test_groups_of_the_wrong_number_are_refused():
    with pytest.raises(UsageError, match="2 groups for 4 workers"):
        queues_of("SS", 4, groups=[0, 1])


def test_a_rule_that_picks_an_empty_queue_is_named():
    class Stubborn:
        def __init__(self, seed):
            self.picked = 0

        def pick(self, worker, own, near, far):
            self.picked += 1
            return [*near, *far][0] if self.picked < 4 else 0

    spec = parse_victims("m:Stubborn", load=lambda text: Stubborn)
    choice = Choice(scheme=parse_scheme("SS"), layout="PERCPU", victims=spec)
    queues = WorkQueues(choice, total=40, workers=2)
    with pytest.raises(UsageError, match=r"m:Stubborn picked 0, and must pick one of .*\[1\]"):
        list(iter(lambda: queues.take(0), None))
