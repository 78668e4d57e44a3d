# SPDX-License-Identifier: Apache-2.0
"""Leases: whatever teams ask for, merge and lose, every sample is committed exactly once."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.control.sync.leasing import HALVES, MAX_STEPS, LeaseBook, check_lease_scheme
from gangline.spec.errors import UsageError
from gangline.spec.leases import Lease

if TYPE_CHECKING:
    from collections.abc import Iterable

EMPTY = Lease(0, 0)
TEAMS = 3
SCHEMES = [HALVES, "GSS", "FAC2", "TSS", "SS", "STATIC", "FISS", "WF2", "daphne:TFSS"]


class Game:
    """A book, and what its teams really did with their samples."""

    def __init__(self, length: int, scheme: str = HALVES) -> None:
        self.book = LeaseBook(0, length, scheme=scheme)
        self.orders: dict[int, list[int]] = {team: [] for team in range(TEAMS)}
        self.committed: dict[int, int] = dict.fromkeys(range(TEAMS), 0)
        self.used: Counter[int] = Counter()
        self.next_team = TEAMS

    def grant(self, team: int, *, batch: int = 3) -> Lease:
        number = len(self.book.order_of(team))
        part, teams = 1 / len(self.orders), len(self.orders)
        lease = self.book.grant(team, number, batch=batch, part=part, teams=teams)
        self.orders[team] += range(lease.start, lease.stop)
        return lease

    def commit(self, team: int, part: float) -> None:
        """Merges a part of what the team has and did not merge."""
        before, given = self.committed[team], len(self.orders[team])
        offset = before + round((given - before) * part)
        self.book.commit(team, offset)
        self.used.update(self.orders[team][before:offset])
        self.committed[team] = offset

    def lose(self, team: int) -> None:
        """The team dies, and another one begins in its place."""
        lost = self.orders.pop(team)[self.committed.pop(team) :]
        returned = self.book.take_back(team).get(team, [])
        assert [one for lease in returned for one in range(*lease)] == lost
        self.orders[self.next_team], self.committed[self.next_team] = [], 0
        self.next_team += 1

    def finish(self) -> None:
        """All teams meet, and go on until nothing is left."""
        while True:
            for team in self.orders:
                self.commit(team, 1.0)
            self.book.reopen()
            if all(self.grant(team) == EMPTY for team in list(self.orders)):
                return


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["grant", "grant", "grant", "commit", "lose", "reopen"]),
        st.integers(0, TEAMS - 1),
        st.integers(1, 7),
        st.floats(0, 1),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 120), moves=MOVES, scheme=st.sampled_from(SCHEMES))
def test_every_sample_is_committed_once_whatever_happens(
    length: int, moves: list[tuple[str, int, int, float]], scheme: str
) -> None:
    game = Game(length, scheme)
    for what, place, batch, part in moves:
        team = sorted(game.orders)[place]
        match what:
            case "grant":
                game.grant(team, batch=batch)
            case "commit":
                game.commit(team, part)
            case "lose":
                game.lose(team)
            case _:
                game.book.reopen()
        assert game.book.num_committed == game.used.total()
    game.finish()
    assert game.used == Counter(range(length))
    assert game.book.is_complete
    assert game.book.num_free == 0


@settings(max_examples=30, deadline=None)
@given(length=st.integers(0, 200), batch=st.integers(1, 9), parts=st.floats(0.01, 1))
def test_asking_again_gives_the_same_lease(length: int, batch: int, parts: float) -> None:
    book = LeaseBook(0, length)
    first = [book.grant(0, number, batch=batch, part=parts) for number in range(5)]
    again = [book.grant(0, number, batch=batch + 1, part=1.0) for number in range(5)]
    granted = [lease for lease in first if lease != EMPTY]
    assert again[: len(granted)] == granted
    assert book.order_of(0).leases[: len(granted)] == granted


def test_leases_shrink_to_one_step_and_are_whole_steps() -> None:
    book = LeaseBook(0, 1000)
    sizes: list[int] = []
    number = 0
    while (lease := book.grant(number % 2, number // 2, batch=8, part=0.5)) != EMPTY:
        sizes.append(lease.stop - lease.start)
        number += 1
    assert sizes[0] == MAX_STEPS * 8
    assert sizes == sorted(sizes, reverse=True)
    assert all(size % 8 == 0 for size in sizes[:-1])
    assert sizes[-3:-1] == [8, 8]
    assert sum(sizes) == 1000


def leased(scheme: str, *, parts: tuple[float, ...], batch: int, length: int) -> list[int]:
    """The sizes of the leases of teams that ask one after the other."""
    book, sizes, teams = LeaseBook(0, length, scheme=scheme), [], len(parts)
    while True:
        number, team = divmod(len(sizes), teams)
        lease = book.grant(team, number, batch=batch, part=parts[team], teams=teams)
        if lease == EMPTY:
            return sizes
        sizes.append(lease.stop - lease.start)


def test_leases_follow_the_scheme_in_whole_steps() -> None:
    assert leased("GSS", parts=(0.25,) * 4, batch=1, length=1000)[:6] == [
        250,
        188,
        141,
        106,
        79,
        59,
    ]
    assert leased("FAC2", parts=(0.25,) * 4, batch=1, length=1000)[:8] == [125] * 4 + [63] * 4
    tss = leased("TSS", parts=(0.25,) * 4, batch=8, length=1000)
    assert tss[:4] == [128, 120, 112, 104], "125, 117, 109, 101 samples, in steps of 8"
    assert sum(tss) == 1000
    assert all(size % 8 == 0 for size in tss[:-1])


def test_by_weighted_factoring_leases_go_by_the_speeds() -> None:
    assert leased("WF2", parts=(0.75, 0.25), batch=1, length=1000)[:2] == [375, 125]


def test_a_book_that_was_written_down_goes_on_with_the_same_sizes() -> None:
    def grant(book: LeaseBook, number: int) -> Lease:
        return book.grant(number % 2, number // 2, batch=1, part=0.5, teams=2)

    book, restored = (LeaseBook(0, 1000, scheme="FAC2") for _ in range(2))
    for number in range(5):
        restored.restore(number % 2, *grant(book, number))
    read = pickle.loads(pickle.dumps(book))
    assert grant(book, 5) == grant(restored, 5) == grant(read, 5)


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        ("GSSS", "did you mean 'GSS'"),
        ("AWF-C", "learns .* take WF2"),
        ("", "scheme ''"),
    ],
)
def test_schemes_that_cannot_size_leases_are_refused(scheme: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_lease_scheme(scheme)


def test_a_faster_team_gets_larger_leases() -> None:
    book = LeaseBook(0, 1000)
    slow = book.grant(0, 0, batch=2, part=0.2)
    fast = book.grant(1, 0, batch=8, part=0.8)
    assert slow == (0, MAX_STEPS * 2)
    assert fast == (slow.stop, slow.stop + MAX_STEPS * 8)


def test_who_was_told_that_nothing_is_left_hears_the_same_until_all_have_met() -> None:
    book = LeaseBook(0, 10)
    book.grant(0, 0, batch=10, part=1.0)
    assert book.grant(1, 0, batch=10, part=1.0) == EMPTY
    book.take_back(0)
    assert book.num_free == 10
    assert book.grant(1, 0, batch=10, part=1.0) == EMPTY, "its members may have heard it before"
    book.reopen()
    assert book.grant(1, 0, batch=10, part=1.0) == (0, 10)


def test_what_was_lost_goes_back_but_not_what_was_merged() -> None:
    book = LeaseBook(0, 100)
    for team, start, stop in ((0, 0, 20), (1, 20, 30), (0, 30, 50)):
        book.restore(team, start, stop)
    book.commit(0, 25)
    assert book.uncommitted(0) == ((35, 50),)
    assert _samples(book.uncommitted(1)) == list(range(20, 30))
    assert book.take_back(0) == {0: [(35, 50)]}
    assert book.num_committed == 25
    assert book.num_free == 50 + 15
    assert len(book.order_of(0)) == 0
    assert book.take_back(0) == {}


def shared_book() -> LeaseBook:
    """Teams 0 and 1 were merged with each other, team 2 with nobody."""
    book = LeaseBook(0, 100)
    for team in range(3):
        book.restore(team, 20 * team, 20 * team + 20)
    book.commit(0, 5)
    book.share({0: 15, 1: 10})
    return book


def test_what_other_teams_have_is_not_lost_with_the_team_that_brought_it() -> None:
    book = shared_book()
    assert book.take_back(0) == {0: [(15, 20)]}
    assert book.num_committed == 5
    assert book.carried_by([1, 2]) == {0: 15}
    assert book.carried_by([2]) == {}
    book.commit(0, 15)
    assert book.num_committed == 15
    assert book.carried_by([1, 2]) == {}


def test_what_was_carried_on_is_lost_with_the_last_that_carried_it() -> None:
    book = shared_book()
    book.take_back(0)
    assert book.take_back(1) == {1: [(20, 40)], 0: [(5, 15)]}
    assert book.num_free == 40 + 5 + 10 + 20
    assert book.carried_by([2]) == {}


def test_what_all_have_is_lost_with_nobody() -> None:
    book = shared_book()
    book.take_back(0)
    book.commit(0, 15)
    book.commit(1, 10)
    assert book.take_back(1) == {1: [(30, 40)]}


def test_a_commit_goes_neither_back_nor_beyond_what_was_given() -> None:
    book = LeaseBook(0, 100)
    book.restore(0, 0, 20)
    book.commit(0, 15)
    book.commit(0, 5)
    assert book.num_committed == 15
    book.commit(0, 10**9)
    assert book.num_committed == 20
    book.commit(7, 3)
    assert book.num_committed == 20


def test_an_epoch_without_samples_is_complete_at_once() -> None:
    book = LeaseBook(3, 0)
    assert book.is_complete
    assert book.grant(0, 0, batch=4, part=1.0) == EMPTY
    assert book.uncommitted(0) == ()


def _samples(leases: Iterable[Lease]) -> list[int]:
    return [sample for lease in leases for sample in range(*lease)]


@pytest.mark.parametrize("lease", [Lease(2, 6), Lease(6, 12), Lease(20, 24)])
def test_a_record_that_gives_samples_twice_is_refused_by_name(lease: Lease) -> None:
    book = LeaseBook(3, 10)
    book.restore(0, 0, 4)
    with pytest.raises(
        UsageError, match=rf"samples {lease.start} to {lease.stop} of epoch 3 .*team 1"
    ):
        book.restore(1, *lease)


@pytest.mark.parametrize(("late_by", "again"), [(1, Lease(0, 4)), (2, EMPTY)])
def test_what_came_too_late_is_for_all_but_the_slow(late_by: int, again: Lease) -> None:
    book = LeaseBook(0, 8)
    book.restore(0, 0, 4)
    book.restore(1, 4, 8)
    book.commit(1, 4)
    book.note_in_time(1)
    assert book.void(0, 0, 4, late_by=late_by) == [(0, 4)]
    assert book.grant(0, 1, batch=4, part=0.5) == again


def test_nobody_has_a_second_lease_of_what_others_need_for_their_first() -> None:
    book = LeaseBook(0, 12)
    assert book.grant(0, 0, batch=4, part=1 / 3, teams=3, reserved=8) == (0, 4)
    assert book.grant(0, 1, batch=4, part=1 / 3, teams=3, reserved=8) == EMPTY
    assert book.grant(1, 0, batch=4, part=1 / 3, teams=3, reserved=4) == (4, 8)
    assert book.grant(2, 0, batch=4, part=1 / 3, teams=3, reserved=0) == (8, 12)


def test_a_second_lease_leaves_what_is_reserved() -> None:
    book = LeaseBook(0, 20)
    assert book.grant(0, 0, batch=4, part=0.5, teams=2, reserved=4) == (0, 4)
    assert book.grant(0, 1, batch=16, part=1.0, teams=2, reserved=6) == (4, 14)


def test_who_is_slow_is_lent_what_came_too_late_where_nobody_else_is_there() -> None:
    book = LeaseBook(0, 4)
    book.restore(0, 0, 4)
    book.void(0, 0, 4, late_by=3)
    assert book.grant(0, 1, batch=4, part=1.0) == (0, 4)
