# SPDX-License-Identifier: Apache-2.0
"""The runtime's arithmetic: cutting windows, orders, agreement, the step clock, the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler

import gangline
from gangline.collectives import Group, SoloGroup
from gangline.spec import View
from gangline.spec.errors import UsageError
from gangline.spec.position import Position
from gangline.worker import api
from gangline.worker.gradients.agreement import WIDTH, Statement, decode, encode
from gangline.worker.samples.handout import cut_shares, cut_window, num_steps
from gangline.worker.samples.loader import ShareSampler
from gangline.worker.samples.order import (
    Company,
    DrawnOrder,
    SequentialOrder,
    ShuffledOrder,
    order_of,
    order_seed,
)
from gangline.worker.telling.stepclock import StepClock, StepTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# --- cutting a window --------------------------------------------------------------------------------


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, list[int], int]:
    """A minimum, shares that respect it, and a full or ragged total."""
    minimum = draw(st.integers(1, 3))
    share = st.one_of(st.just(0), st.integers(minimum, 40))
    shares = draw(st.lists(share, min_size=1, max_size=6).filter(any))
    total = draw(st.integers(1, sum(shares)))
    return total, shares, minimum


@given(cut=cuts())
@settings(deadline=None)
def test_shares_of_a_batch_sum_to_it_and_none_is_too_small(cut: tuple[int, list[int], int]) -> None:
    total, shares, minimum = cut
    parts = cut_shares(total, shares, minimum=minimum)
    assert sum(parts) == total
    assert all(part >= 0 for part in parts)
    assert all(part == 0 for part, share in zip(parts, shares, strict=True) if share == 0)
    if total >= minimum:
        assert all(part == 0 or part >= minimum for part in parts)
    else:
        assert sorted(parts)[-1] == total, "what is too small for two is one worker's"
    if total == sum(shares):
        assert parts == shares


@given(total=st.integers(1, 60), shares=st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_a_ragged_batch_is_cut_in_proportion(total: int, shares: list[int]) -> None:
    total = min(total, sum(shares))
    exact = [total * share / sum(shares) for share in shares]
    parts = cut_shares(total, shares)
    assert all(abs(part - ideal) < 1 + 1e-9 for part, ideal in zip(parts, exact, strict=True))


@given(cut=cuts(), num_micros=st.integers(1, 5))
@settings(deadline=None)
def test_all_parts_of_all_workers_tile_the_window_once(
    cut: tuple[int, list[int], int], num_micros: int
) -> None:
    total, shares, minimum = cut
    pieces = [
        cut_window(total, shares, rank=rank, num_micros=num_micros, minimum=minimum)
        for rank in range(len(shares))
    ]
    assert all(len(row) == num_micros for row in pieces)
    flat = [piece for row in pieces for piece in row]
    covered = [index for start, stop in flat for index in range(start, stop)]
    assert covered == list(range(total))
    sizes = [stop - start for start, stop in flat if stop > start]
    assert min(sizes) >= min(minimum, total)


class ChangingViews:
    """A job whose shares are others at every step."""

    def __init__(self, shares: list[tuple[int, ...]], *, rank: int) -> None:
        self._shares = shares
        self._rank = rank
        self.cut_from = Position.at_start()

    company = Company.APART
    """So that all ranks draw one order without a group."""

    def agree_on_order(self, exchange: Callable[[Group], torch.Tensor], key: Any) -> torch.Tensor:
        return on_a_group_of_one(exchange, key)

    pulls = None
    is_cut_off = False

    def pull(self, pool: Any, micro: int) -> None:
        raise AssertionError("nothing is pulled")

    def reach(self, start: int, stop: int, *, length: int) -> int:
        return min(stop, length)

    def locate(self, start: int, stop: int) -> list[tuple[int, int]]:
        return [(start, stop)]

    def view_for(self, step: int) -> tuple[View, int]:
        shares = self._shares[step % len(self._shares)]
        members = tuple(range(len(shares)))
        return View(number=step, members=members, shares=shares), self._rank


@st.composite
def changing_shares(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Shares of three workers at several steps, all of the same global batch."""
    first = draw(st.tuples(*[st.integers(2, 9)] * 3))
    return draw(st.lists(st.permutations(first).map(tuple), min_size=1, max_size=4))


@given(
    shares=changing_shares(),
    length=st.integers(1, 90),
    num_micros=st.integers(1, 3),
    drop_last=st.booleans(),
    minimum=st.integers(1, 2),
)
@settings(deadline=None)
def test_an_epoch_uses_each_sample_once_when_the_shares_change(
    shares: list[tuple[int, ...]], length: int, num_micros: int, drop_last: bool, minimum: int
) -> None:
    batch = sum(shares[0])
    order = make_order(RandomSampler(range(length)), length)
    used: list[int] = []
    for rank in range(3):
        sampler = ShareSampler(
            order,
            ChangingViews(shares, rank=rank),  # type: ignore[arg-type]
            global_batch=batch,
            num_micros=num_micros,
            drop_last=drop_last,
            minimum=minimum,
        )
        batches = list(sampler)
        assert len(batches) == len(sampler), "all workers make the same number of iterations"
        assert len(batches) == num_micros * num_steps(
            length, global_batch=batch, drop_last=drop_last
        )
        for indices, handout in zip(batches, sampler.drawn, strict=True):
            assert len(indices) >= min(minimum, handout.total)
            if handout.samples:
                assert len(indices) == handout.samples
                used += indices
    whole = length - length % batch if drop_last else length
    assert sorted(used) == sorted(order.indices(0, on_a_group_of_one, Company.APART)[:whole])


class Leaving(ChangingViews):
    """From a step on, this worker is in the view no more."""

    def __init__(self, *, last: int) -> None:
        super().__init__([(4, 4)], rank=1)
        self._last = last

    def view_for(self, step: int) -> tuple[View, int | None]:  # type: ignore[override]
        view, rank = super().view_for(step)
        return view, rank if step <= self._last else None


@pytest.mark.parametrize(("last", "is_out"), [(0, True), (1, False)])
def test_who_leaves_with_the_next_epoch_has_been_there_to_the_end_of_this_one(
    last: int, is_out: bool
) -> None:
    """A loop that fetches ahead goes on to agree on the order of the next epoch, as the others do."""
    order = make_order(RandomSampler(range(16), generator=torch.Generator()), length=16)
    ended: list[bool] = []
    order.end = lambda: ended.append(True)
    sampler = ShareSampler(
        order,
        Leaving(last=last),  # type: ignore[arg-type]
        global_batch=8,
        num_micros=1,
        drop_last=False,
        minimum=1,
    )
    assert len(list(sampler)) == last + 1
    assert (sampler.is_out, ended) == (is_out, [] if is_out else [True])


# --- orders ------------------------------------------------------------------------------------------


def on_a_group_of_one(exchange: Callable[[Group], torch.Tensor], key: Any) -> torch.Tensor:
    return exchange(SoloGroup())


def make_order(sampler: Any, length: int = 10, seed: int = 5) -> Any:
    return order_of(sampler, length=length, seed=seed)


def test_torchs_own_samplers_need_no_message() -> None:
    data = range(10)
    assert isinstance(make_order(SequentialSampler(data)), SequentialOrder)
    assert isinstance(make_order(RandomSampler(data)), ShuffledOrder)


@pytest.mark.parametrize(
    ("sampler", "name", "length"),
    [
        (RandomSampler(range(10), replacement=True), "drawn by RandomSampler", 10),
        (RandomSampler(range(10), num_samples=4), "drawn by RandomSampler", 4),
        (SubsetRandomSampler([1, 3, 5]), "drawn by SubsetRandomSampler", 3),
        ([4, 4, 2], "drawn by list", 3),
    ],
)
def test_other_samplers_are_drawn(sampler: Any, name: str, length: int) -> None:
    order = make_order(sampler)
    assert isinstance(order, DrawnOrder)
    assert (order.name, order.length) == (name, length)
    assert len(order.indices(0, on_a_group_of_one, Company.TOGETHER)) == length


def test_a_drawn_order_is_what_the_sampler_gives() -> None:
    assert list(make_order([4, 4, 2]).indices(0, on_a_group_of_one, Company.TOGETHER)) == [4, 4, 2]


@given(length=st.integers(1, 50), seed=st.integers(0, 1 << 54), epoch=st.integers(0, 100))
def test_groups_apart_have_one_shuffled_order_by_seed_and_epoch(
    length: int, seed: int, epoch: int
) -> None:
    def draw() -> list[int]:
        generator = torch.Generator().manual_seed(length)
        order = make_order(RandomSampler(range(length), generator=generator), length, seed)
        indices: list[int] = order.indices(epoch, on_a_group_of_one, Company.APART)
        assert torch.equal(
            generator.get_state(), torch.Generator().manual_seed(length).get_state()
        ), "a generator of the user's own is not drawn from"
        return indices

    assert sorted(draw()) == list(range(length))
    assert draw() == draw()


@pytest.mark.parametrize("company", Company)
def test_every_epoch_has_another_shuffled_order(company: Company) -> None:
    order = make_order(RandomSampler(range(50)), 50)
    orders = {tuple(order.indices(epoch, on_a_group_of_one, company)) for epoch in range(20)}
    assert len(orders) == 20


def test_a_second_try_to_agree_on_a_shuffled_order_draws_nothing_anew() -> None:
    def try_twice(exchange: Callable[[Group], torch.Tensor], key: Any) -> torch.Tensor:
        on_a_group_of_one(exchange, key)
        return on_a_group_of_one(exchange, key)

    drawn = []
    for agree in (on_a_group_of_one, try_twice):
        torch.manual_seed(4)
        order = make_order(RandomSampler(range(50)), 50)
        drawn.append((order.indices(3, agree, Company.TOGETHER), torch.rand(()).item()))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(4)])
def test_the_seed_of_orders_is_not_drawn_from_the_users_numbers(
    generator: torch.Generator | None,
) -> None:
    source = generator or torch.default_generator
    before = source.get_state()
    seed = order_seed(generator)
    assert torch.equal(source.get_state(), before)
    torch.empty((), dtype=torch.int64).random_(generator=source)
    assert order_seed(generator) != seed, "it follows from the generator's state"
    source.set_state(before)


class DrawsLate:
    """A sampler that draws each index when it is asked for."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        yield from (int(torch.randint(9, ())) for _ in range(6))


def test_alone_a_sampler_is_drawn_from_as_the_batches_are_asked_for() -> None:
    order = make_order(DrawsLate(), 6)
    torch.manual_seed(1)
    indices = order.indices(0, on_a_group_of_one, Company.ALONE)
    drawn = [*indices[0:2]]
    state = torch.get_rng_state()
    assert indices[1] == drawn[1]
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn that was drawn already"
    drawn += indices[2:6]
    torch.manual_seed(1)
    assert drawn == [int(torch.randint(9, ())) for _ in range(6)]


# --- agreement ---------------------------------------------------------------------------------------

LARGE = st.integers(-(1 << 62), 1 << 62)
STATEMENTS = st.lists(LARGE, min_size=WIDTH, max_size=WIDTH).map(Statement.of)


@given(
    statements=st.lists(STATEMENTS, min_size=1, max_size=4),
    units=st.lists(st.booleans(), max_size=5),
    data=st.data(),
)
@settings(deadline=None)
def test_the_header_brings_back_the_least_and_the_most(
    statements: list[Statement], units: list[bool], data: st.DataObject
) -> None:
    flags = [
        data.draw(st.lists(st.booleans(), min_size=len(units), max_size=len(units)))
        for _ in statements
    ]
    sizes = [data.draw(st.integers(0, 1 << 40)) for _ in statements]
    headers = [
        encode(one, dirty, [sizes[rank] if rank == other else 0 for other in range(len(sizes))])
        for rank, (one, dirty) in enumerate(zip(statements, flags, strict=True))
    ]
    agreed = decode(np.max(headers, axis=0), num_units=len(units), num_members=len(sizes))
    assert agreed.sizes == tuple(sizes)
    assert agreed.shares == ()
    columns = list(zip(*(one.values for one in statements), strict=True))
    assert agreed.most.values == tuple(max(column) for column in columns)
    assert agreed.least.values == tuple(min(column) for column in columns)
    assert agreed.units == tuple(any(column) for column in zip(*flags, strict=True))
    for place, column in enumerate(columns):
        assert agreed.differ(lambda said, at=place: said.values[at]) is (len(set(column)) > 1)


# --- the step clock ----------------------------------------------------------------------------------


def test_each_part_of_a_step_has_its_own_time() -> None:
    now = [0.0]
    clock = StepClock(lambda: now[0])

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    for _ in range(2):  # two micro-batches of one step
        pass_time(1)
        clock.handed_out()
        pass_time(20)
        clock.computed()
        pass_time(300)
        clock.exchanged()
    pass_time(4000)
    clock.updated()
    assert clock.take() == StepTimes(data_s=2, compute_s=40, exchange_s=600, update_s=4000)
    assert clock.take() == StepTimes(), "the next step starts from nothing"


def test_what_servers_take_is_neither_computing_nor_the_update() -> None:
    now = [0.0]
    clock = StepClock(lambda: now[0])
    for seconds, lap in ((20, clock.computed), (300, clock.exchanged), (4, clock.updated)):
        now[0] += seconds
        lap()
    now[0] += 5000
    clock.served(turn_s=1000.0)
    clock.updated()
    times = clock.take()
    assert times == StepTimes(compute_s=20, exchange_s=300, update_s=4, served_s=5000, turn_s=1000)
    assert times.total_s == 5324
    assert times.on_device(5000.0) == StepTimes(
        compute_s=5000, exchange_s=300, served_s=24, turn_s=24
    )


def test_a_lap_is_counted_once() -> None:
    now = [0.0]
    clock = StepClock(lambda: now[0])
    now[0] = 5.0
    assert clock.lap() == 5.0
    clock.handed_out()
    assert clock.times.data_s == 0.0


# --- the environment ---------------------------------------------------------------------------------

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def init_with(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name in (*TORCHRUN, "GANGLINE_LAUNCH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    try:
        gangline.init(timeout_s=1.0)
    finally:
        api.shutdown()


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT"])
def test_words_where_torchrun_writes_numbers_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match = r"RANK, WORLD_SIZE and MASTER_PORT must be whole numbers \(.*'two'\); start the script"
    with pytest.raises(UsageError, match=match):
        init_with(monkeypatch, {**TORCHRUN, name: "two"})


@pytest.mark.parametrize(
    "numbers",
    [("2", "2"), ("-1", "2"), ("0", "0"), ("0", "-3")],
    ids=lambda numbers: "/".join(numbers),
)
def test_a_rank_outside_of_the_world_is_refused(
    numbers: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, size = numbers
    with pytest.raises(UsageError, match=rf"RANK.*{rank}.*WORLD_SIZE.*{size}"):
        init_with(monkeypatch, {**TORCHRUN, "RANK": rank, "WORLD_SIZE": size})


def test_torchrun_with_one_process_is_a_job_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TORCHRUN, "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GANGLINE_LAUNCH", raising=False)
    gangline.init()
    try:
        assert (gangline.rank(), gangline.world_size()) == (0, 1)
    finally:
        api.shutdown()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "x"}', '{"unheard": 1}', "7"])
def test_a_launch_that_gangline_run_did_not_write_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match = (
        r"GANGLINE_LAUNCH is not what `gangline run` writes \(.+\); unset it, or start the script"
    )
    with pytest.raises(UsageError, match=match):
        init_with(monkeypatch, {"GANGLINE_LAUNCH": text})
