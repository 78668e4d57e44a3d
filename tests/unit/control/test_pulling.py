# SPDX-License-Identifier: Apache-2.0
"""Parts of a global batch, pulled: whoever asks whenever, each sample is handed out once."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.control import ControlOptions
from gangline.control.shares.parts_desk import KEPT_POOLS, PartsDesk, Pool, UnknownPool
from gangline.control.shares.pulling import Pulling, base_allocation, parse_pulling
from gangline.spec.errors import UsageError

SCHEMES = ["WF2", "GSS", "FAC2", "SS", "STATIC", "TSS", "daphne:FISS"]


def give(desk: PartsDesk, worker: int, number: int, *, pool: Pool, members: int = 3, **limits: int):
    limits = {"minimum": 1, "ceiling": 10**6, **limits}
    return desk.give(worker, pool, number, members=range(members), **limits)


@settings(max_examples=80, deadline=None)
@given(
    scheme=st.sampled_from(SCHEMES),
    total=st.integers(1, 300),
    grain=st.integers(0, 20),
    minimum=st.integers(1, 8),
    ceiling=st.integers(1, 300),
    turns=st.lists(st.tuples(st.integers(0, 2), st.floats(0.001, 1)), max_size=400),
)
def test_every_sample_is_handed_out_once_whoever_asks(
    scheme: str,
    total: int,
    grain: int,
    minimum: int,
    ceiling: int,
    turns: list[tuple[int, float]],
) -> None:
    desk = PartsDesk(Pulling(scheme=scheme, grain=grain))
    pool, parts = Pool(0, 1, 7, 40, 40 + total), {worker: [] for worker in range(3)}
    limits = {"pool": pool, "minimum": minimum, "ceiling": ceiling}
    everybody = [*turns, *[(worker, 1.0) for worker in (0, 1, 2) for _ in range(total + 1)]]
    for worker, seconds in everybody:
        part = give(desk, worker, len(parts[worker]), **limits)
        assert give(desk, worker, len(parts[worker]), **limits) == part, "asked again, the same"
        if part is not None:
            parts[worker].append(part)
            desk.learn(worker, part[1] - part[0], seconds)
        if len(parts[0]) == 2:
            desk = pickle.loads(pickle.dumps(desk))
    cuts = sorted(part for mine in parts.values() for part in mine)
    assert [one for start, stop in cuts for one in range(start, stop)] == list(
        range(40, 40 + total)
    )
    most = max(ceiling, minimum, 2 * minimum - 1)
    assert all(stop - start <= most for start, stop in cuts)
    assert all(stop - start >= min(minimum, total) for start, stop in cuts), "none is too small"


def test_parts_go_by_how_fast_the_workers_were() -> None:
    desk = PartsDesk(Pulling(grain=1))
    for worker, seconds in ((0, 1.0), (1, 3.0)):
        desk.learn(worker, 30, seconds)
    pool = Pool(0, 0, 0, 0, 80)
    assert give(desk, 0, 0, pool=pool, members=2) == (0, 30), "half of three quarters"
    assert give(desk, 1, 0, pool=pool, members=2) == (30, 40)


def test_a_worker_alone_gets_all_that_it_can_hold() -> None:
    desk, pool = PartsDesk(Pulling()), Pool(0, 0, 0, 0, 100)
    assert give(desk, 4, 0, pool=pool, members=1, ceiling=64) == (0, 64)
    assert give(desk, 4, 1, pool=pool, members=1, ceiling=64) == (64, 100)
    assert give(desk, 4, 2, pool=pool, members=1, ceiling=64) is None


def test_pools_that_are_not_known_are_refused() -> None:
    desk = PartsDesk(Pulling(), first_group=2)
    with pytest.raises(UnknownPool, match="started again"):
        give(desk, 0, 0, pool=Pool(1, 0, 0, 0, 10))
    give(desk, 0, 0, pool=Pool(2, 0, 5, 0, 10))
    with pytest.raises(UnknownPool, match="the members differ"):
        give(desk, 1, 0, pool=Pool(2, 0, 5, 0, 12))
    with pytest.raises(UnknownPool, match="part 3 was asked for"):
        give(desk, 1, 3, pool=Pool(2, 0, 5, 0, 10))
    for step in range(6, 6 + 2 * KEPT_POOLS):
        give(desk, 0, 0, pool=Pool(2, 0, step, 0, 10))
    with pytest.raises(UnknownPool, match="long over"):
        give(desk, 1, 0, pool=Pool(2, 0, 5, 0, 10))


@pytest.mark.parametrize(
    ("text", "expected", "base"),
    [
        ("self-scheduled", Pulling(), "equal"),
        ("self-scheduled(GSS)", Pulling(scheme="GSS"), "equal"),
        ("self-scheduled(FAC2, grain=4)", Pulling(scheme="FAC2", grain=4), "equal"),
        ("self-scheduled(PLS(swr=0.3))", Pulling(scheme="PLS(swr=0.3)"), "equal"),
        ("balanced+stolen", Pulling(own=0.8), "balanced"),
        ("balanced+stolen(GSS, own=0.5)", Pulling(scheme="GSS", own=0.5), "balanced"),
    ],
)
def test_allocations_that_pull_are_read(text: str, expected: Pulling, base: str) -> None:
    assert parse_pulling(text) == expected
    assert base_allocation(text) == base
    assert ControlOptions(global_batch=8, allocation=text).allocation == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("self-scheduled(GSSS)", "no scheme 'GSSS'.*did you mean 'GSS'"),
        ("self-scheduled(AF)", "learns .* take WF2"),
        ("self-scheduled(grain=0)", "grain is a whole number of samples, at least 1"),
        ("self-scheduled(grain=two)", "grain must be a number, not 'two'"),
        ("self-scheduled(own=0.5)", "no option 'own'; there are grain"),
        ("balanced+stolen(own=1)", "own is the part of a share .* between 0 and 1"),
        ("balanced+stolen(size=3)", "no option 'size'; there are grain, own"),
        ("self-schedule", "did you mean 'self-scheduled'"),
        ("self-scheduled(", "no allocation"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ControlOptions(global_batch=8, allocation=text)


def test_shares_begin_with_a_part_of_their_own_unless_that_is_too_small() -> None:
    assert parse_pulling("balanced").__class__ is type(None)
    assert Pulling(own=0.8).heads((30, 10, 2), minimum=2) == [24, 8, 0]
    assert Pulling().heads((30, 10, 2), minimum=1) == [0, 0, 0]
