# SPDX-License-Identifier: Apache-2.0
"""A codec is used where it was found to be faster, by all members alike, and nothing is lost."""

from __future__ import annotations

import itertools

import pytest
import torch

from gangline.collectives import take_verdicts
from gangline.collectives.compression import Compressor, Trial, Verdict
from gangline.collectives.compression.trial import TURNS
from gangline.collectives.hierarchy.group import TreeGroup
from gangline.collectives.hierarchy.levels import RingLevel
from gangline.collectives.hierarchy.seats import seats_of
from gangline.spec.exchange.compression import Compression
from gangline.spec.exchange.structure import Structure
from wire_members import WireGroup, run_members

MEMBERS = 3
KEYS = ((0, 0), (0, 1), (1, 0))
LENGTH = 3000
ROUNDS = len(TURNS) + 4


class Clock:
    """Every exchange takes as long as a test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def tried(group: WireGroup, coded_s: float, plain_s: float) -> tuple[list[bool], Verdict | None]:
    """Whether each exchange was compressed; the members wait for each other, but the last one."""
    clock, turns = Clock(), []
    trial = Trial("top", "8-bit", now=clock)
    for number, key in itertools.product(range(ROUNDS), KEYS):
        with trial.exchange(group, key) as is_coded:
            has_waited = group.rank != number % MEMBERS
            clock.now_s += (coded_s if is_coded else plain_s) + 5.0 * has_waited
        turns.append(is_coded)
    return turns, trial.verdict


@pytest.mark.parametrize(
    ("coded_s", "is_used"), [(0.5, True), (0.85, True), (0.95, False), (2.0, False)]
)
def test_what_is_faster_for_who_comes_last_is_kept_by_all(coded_s: float, is_used: bool) -> None:
    outcomes = run_members(MEMBERS, lambda group: tried(group, coded_s, 1.0))
    expected = [turn for turn in TURNS for _ in KEYS] + [is_used] * 4 * len(KEYS)
    for turns, verdict in outcomes:
        assert turns == expected
        assert verdict is not None
        assert (verdict.with_s, verdict.without_s) == pytest.approx((3 * coded_s, 3.0))
        assert f"in {3 * coded_s:.3g} s per step with 8-bit, and in 3 s without" in str(verdict)
        assert ("is not used" in str(verdict)) is not is_used


def test_passes_of_other_tensors_are_not_compared() -> None:
    def body(group: WireGroup) -> Verdict | None:
        clock = Clock()
        trial = Trial("top", "8-bit", now=clock)
        for number in range(ROUNDS):  # two losses in turns, of which one has more units
            for key in KEYS if number % 2 else KEYS[:1]:
                with trial.exchange(group, key):
                    clock.now_s += 1.0
        return trial.verdict

    for verdict in run_members(MEMBERS, body):
        assert verdict is not None
        assert verdict.with_s == verdict.without_s == pytest.approx(1.0)


def tree(group: WireGroup, name: str) -> TreeGroup:
    structure = Structure.flat(range(MEMBERS)).compressed("top", Compression.parse(name))
    (seat,) = seats_of(structure, group.rank)
    level = RingLevel(seat, group, seed=0)
    return TreeGroup(
        group.key,
        rank=group.rank,
        size=MEMBERS,
        levels=[level],
        pairs=None,  # type: ignore[arg-type]
    )


def test_nothing_is_lost_where_a_codec_is_given_up() -> None:
    def body(group: WireGroup) -> torch.Tensor:
        compressor = Compressor(Compression.parse("top-k(0.01)"))
        generator = torch.Generator().manual_seed(group.rank)
        left = torch.zeros(LENGTH, dtype=torch.float64)
        clock = Clock()
        trial = Trial("top", "top-k(0.01)", now=clock)
        for _ in range(ROUNDS):
            values = torch.randn(LENGTH, generator=generator)
            left += values
            with trial.exchange(group, (0, 0)) as is_coded:
                compressor.all_reduce(group, values, key=(0, 0), is_coded=is_coded)
                clock.now_s += 2.0 if is_coded else 1.0
            left -= values / MEMBERS
        return left

    assert sum(run_members(MEMBERS, body)).abs().max() < 1e-4


def test_one_member_of_a_tree_says_what_came_of_it_and_says_it_once() -> None:
    def body(group: WireGroup) -> list[list[Verdict]]:
        members = tree(group, "8-bit")
        said = []
        for _ in range(ROUNDS):
            members.all_reduce_unit(torch.ones(LENGTH), None, unit=0)
            said.append(take_verdicts(members))
        return said

    first, *others = run_members(MEMBERS, body)
    assert [len(said) for said in first] == [0] * len(TURNS) + [1] + [0] * 3
    assert not any(itertools.chain(*others))


def test_who_insists_is_not_tried() -> None:
    def body(group: WireGroup) -> list[float]:
        members = tree(group, "8-bit!")
        results = []
        for number in range(ROUNDS):
            values = torch.linspace(0, 1 + number, LENGTH)
            members.all_reduce_unit(values, None, unit=0)
            results.append(float((values / MEMBERS - torch.linspace(0, 1 + number, LENGTH)).norm()))
        return results

    for errors in run_members(MEMBERS, body):
        assert all(error > 0 for error in errors)


def test_insisting_is_part_of_the_name() -> None:
    for name in ("8-bit!", "top-k(0.01)!", "bf16"):
        assert str(Compression.parse(name)) == name
    assert Compression.parse("8-bit!").is_insisted
