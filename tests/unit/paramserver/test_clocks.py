# SPDX-License-Identifier: Apache-2.0
"""The clocks of a parameter server against the definitions of its modes, by random schedules."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.paramserver.clocks import Arrival, Clocks, Closed, Fate
from gangline.spec.consistency import Consistency, parse_consistency
from gangline.spec.errors import UsageError

MODES = ("bsp", "asp", "ssp(0)", "ssp(1)", "ssp(4)", "backup(0)", "backup(1)", "backup(2)")


class Witness:
    """Does what a schedule says, and keeps its own books to judge the clocks by."""

    def __init__(self, mode: Consistency, workers: int) -> None:
        self.clocks = Clocks(mode, range(workers))
        self.mode = mode
        self.active = set(range(workers))
        self.finished: set[int] = set()
        self.computing: dict[int, tuple[int, int]] = {}
        self.sent: list[tuple[int, int]] = []
        self.applied: list[tuple[int, int]] = []
        self.held: list[tuple[int, int]] = []
        self.fates: dict[tuple[int, int], Fate] = {}
        self.num_joined = 0
        self.rounds: list[Closed] = []

    def do(self, action: str, worker: int) -> None:
        match action:
            case "begin" if worker in self.active and self.clocks.may_begin(worker):
                self.begin(worker)
            case "push" if worker in self.computing:
                self.push(worker)
            case "again" if self.sent:
                self.push_again(*self.sent[worker % len(self.sent)])
            case "leave" if worker in self.active | self.finished:
                self.active.discard(worker)
                self.finished.discard(worker)
                self.computing.pop(worker, None)
                self.close(self.clocks.leave(worker))
            case "finish" if worker in self.active:
                self.active.discard(worker)
                self.finished.add(worker)
                self.computing.pop(worker, None)
                self.close(self.clocks.finish(worker))
            case "resume" if worker in self.finished:
                self.finished.discard(worker)
                self.active.add(worker)
                self.clocks.resume(worker)
            case "join":
                self.num_joined += 1
                self.active.add(100 + self.num_joined)
                self.clocks.join(100 + self.num_joined)
            case "keep":
                self.clocks = Clocks.restore(json.loads(json.dumps(self.clocks.export())))
        self.judge()

    def begin(self, worker: int) -> None:
        clock = self.clocks.begin(worker)
        self.computing[worker] = (clock, len(self.applied))
        if self.mode.has_rounds:
            assert clock == len(self.rounds), "it is of the present round"
        if self.mode.kind in ("bsp", "ssp"):
            bound = clock - self.mode.staleness
            assert all(self.clocks.clock(other) >= bound for other in self.active)

    def push(self, worker: int) -> None:
        clock, read_at = self.computing.pop(worker)
        arrival = self.clocks.arrive(worker, clock)
        self.sent.append((worker, clock))
        self.fates[worker, clock] = arrival.fate
        match arrival.fate:
            case Fate.APPLIED:
                assert not self.mode.has_rounds
                assert arrival.staleness == len(self.applied) - read_at
                self.applied.append((worker, clock))
            case Fate.HELD:
                assert self.mode.has_rounds
                assert read_at == len(self.applied), "it was computed from the present parameters"
                self.held.append((worker, clock))
            case Fate.LATE:
                assert any(closed.round == clock for closed in self.rounds)
                assert self.mode.kind == "backup"
            case fate:
                raise AssertionError(fate)
        self.close(arrival.closed)

    def push_again(self, worker: int, clock: int) -> None:
        arrival = self.clocks.arrive(worker, clock)
        assert arrival.fate is Fate.DUPLICATE
        is_last = (worker, clock) == [one for one in self.sent if one[0] == worker][-1]
        assert arrival.before is (self.fates[worker, clock] if is_last else None)

    def close(self, closed: Closed | None) -> None:
        if closed is None:
            return
        taking_part = self.active | {worker for worker, _ in self.held}
        assert len(closed.workers) == max(1, len(taking_part) - self.mode.backups)
        assert [(worker, closed.round) for worker in closed.workers] == self.held
        self.rounds.append(closed)
        self.applied += self.held
        self.held = []

    def judge(self) -> None:
        clocks = self.clocks
        assert len(set(self.applied)) == len(self.applied) == clocks.applied
        assert set(clocks.active) == self.active
        may = {worker for worker in self.active if clocks.may_begin(worker)}
        assert set(self.computing) <= may
        assert may or not self.active, "nobody could ever go on"
        if self.mode.kind == "asp":
            assert may == self.active
        if self.mode.kind == "ssp" and self.active:
            lowest = min(clocks.clock(worker) for worker in self.active)
            begun = [clock for clock, _ in self.computing.values()]
            assert max(begun, default=0) - lowest <= self.mode.staleness
        if self.mode.has_rounds:
            waiting = {worker for worker, _ in self.held}
            assert may == self.active - waiting


RARE = ["leave", "finish", "resume", "join", "keep"]
ACTIONS = [*["begin"] * 24, *["push"] * 20, *["again"] * 4, "resume", *RARE]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=30)
@given(extra=st.integers(1, 3), rng=st.randoms(use_true_random=False))
def test_a_mode_means_what_its_definition_says(mode, extra, rng):
    consistency = parse_consistency(mode)
    witness = Witness(consistency, consistency.backups + extra)
    for _ in range(150):
        present = sorted(witness.active | witness.finished)
        witness.do(rng.choice(ACTIONS), rng.choice(present or [0]))


@given(st.randoms(use_true_random=False))
def test_bsp_lets_begin_whom_ssp_0_does(rng):
    pair = [Clocks(parse_consistency(mode), range(4)) for mode in ("bsp", "ssp(0)")]
    begun: dict[int, int] = {}
    for _ in range(80):
        begins, worker = rng.random() < 0.5, rng.randrange(4)
        one, other = (clocks.may_begin(worker) for clocks in pair)
        assert one == other
        if begins and one:
            begun[worker], clock = (clocks.begin(worker) for clocks in pair)
            assert begun[worker] == clock
        elif not begins and worker in begun:
            clock = begun.pop(worker)
            for clocks in pair:
                clocks.arrive(worker, clock)


@given(st.integers(0, 4), st.randoms(use_true_random=False))
def test_whoever_reads_sees_all_updates_that_are_older_than_the_staleness(staleness, rng):
    clocks = Clocks(Consistency(kind="ssp", staleness=staleness), range(4))
    applied: set[tuple[int, int]] = set()
    begun: dict[int, int] = {}
    for _ in range(100):
        worker = rng.randrange(4)
        if worker in begun:
            clock = begun.pop(worker)
            arrival = clocks.arrive(worker, clock)
            assert arrival.fate is Fate.APPLIED
            assert arrival.staleness <= (2 * staleness + 1) * 3
            applied.add((worker, clock))
        elif clocks.may_begin(worker):
            begun[worker] = clock = clocks.begin(worker)
            older = {(other, c) for other in range(4) for c in range(max(0, clock - staleness))}
            assert older <= applied


def started(mode: str, workers: int) -> Clocks:
    clocks = Clocks(parse_consistency(mode), range(workers))
    for worker in range(workers):
        clocks.begin(worker)
    return clocks


def test_a_dead_slowest_worker_blocks_nobody():
    clocks = started("ssp(1)", 2)
    for clock in range(2):
        clocks.begin(0)
        clocks.arrive(0, clock)
    assert not clocks.may_begin(0)
    assert clocks.slowest() == (1,)
    clocks.leave(1)
    assert clocks.may_begin(0)


def test_a_round_closes_without_who_dies_in_it():
    clocks = started("bsp", 3)
    assert clocks.arrive(2, 0) == Arrival(fate=Fate.HELD)
    assert clocks.arrive(0, 0).closed is None
    assert clocks.leave(1) == Closed(0, (2, 0))
    assert clocks.arrive(1, 0).fate is Fate.GONE


def test_the_update_of_who_died_after_it_came_counts():
    clocks = started("bsp", 2)
    clocks.arrive(0, 0)
    assert clocks.leave(0) is None
    assert clocks.arrive(1, 0).closed == Closed(0, (0, 1))


def test_a_late_worker_goes_on_with_the_round_of_that_moment():
    clocks = started("backup(1)", 3)
    for round_ in range(3):
        for worker in (0, 1):
            clocks.begin(worker)
            last = clocks.arrive(worker, round_)
        assert last.closed == Closed(round_, (0, 1))
    late = clocks.arrive(2, 0)
    assert (late.fate, late.staleness) == (Fate.LATE, 6)
    assert clocks.arrive(2, 0) == Arrival(fate=Fate.DUPLICATE, before=Fate.LATE)
    assert clocks.begin(2) == 3


def test_uneven_epochs_do_not_leave_anybody_behind():
    clocks = started("ssp(0)", 2)
    clocks.arrive(1, 0)
    clocks.finish(1)
    for clock in range(50):
        clocks.begin(0)
        clocks.arrive(0, clock)
    clocks.finish(0)
    for worker in (1, 0):
        clocks.resume(worker)
        assert clocks.may_begin(worker)
        assert clocks.clock(worker) == 50


def test_an_update_that_nobody_began_is_refused():
    clocks = Clocks(parse_consistency("asp"), range(2))
    with pytest.raises(UsageError, match="not begun clock 0"):
        clocks.arrive(0, 0)
    clocks.begin(0)
    with pytest.raises(UsageError, match="clock 7, but it has begun clock 0"):
        clocks.arrive(0, 7)
    with pytest.raises(UsageError, match="worker 9 has not joined"):
        clocks.arrive(9, 0)


def test_who_must_wait_cannot_begin():
    clocks = started("bsp", 2)
    clocks.arrive(0, 0)
    with pytest.raises(UsageError, match="may not begin clock 1"):
        clocks.begin(0)


def test_a_number_is_given_once():
    clocks = started("asp", 2)
    clocks.leave(1)
    with pytest.raises(UsageError, match="was here before"):
        clocks.join(1)
    for call in (clocks.resume, clocks.finish):
        with pytest.raises(UsageError, match="worker 1 has left"):
            call(1)


def test_other_data_is_not_restored():
    with pytest.raises(UsageError, match="no clocks"):
        Clocks.restore({"mode": "bsp"})


def test_clocks_are_pickled_by_their_own_classes_alone() -> None:
    clocks = Clocks(parse_consistency("backup(1)"), range(3))
    clocks.begin(0)
    clocks.arrive(0, 0)
    pickled = pickle.dumps(clocks)
    assert b"getattr" not in pickled, "a coordinator's state is read without it"
    assert pickle.loads(pickled).export() == clocks.export()
