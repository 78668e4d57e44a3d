# SPDX-License-Identifier: Apache-2.0
"""Gradients that are pushed before the rest of their push: they count with it, and never without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from serving_workers import ALONE, SHAPES, Reference, entry, gradients, model, momentum, workers

from gangline.paramserver.service.pieces import PiecesMissing
from gangline.paramserver.service.pushes import Push
from gangline.paramserver.service.shard import Shard
from gangline.spec.errors import GradientError, MismatchError
from wire_members import SHARED, WAYS

if TYPE_CHECKING:
    from gangline.collectives.wire import WireOptions

NONE = (None,) * len(SHAPES)


def shard() -> Shard:
    parameters = model()
    return Shard(0, range(len(SHAPES)), parameters, momentum(parameters))


def garbage() -> list[torch.Tensor]:
    """What must not count."""
    return [torch.full(shape, 1e6) for shape in SHAPES]


@WAYS
def test_a_push_in_pieces_is_that_push_also_for_the_replica(options: WireOptions) -> None:
    reference = Reference()
    with workers(3, options) as job:
        job.follow(job.serving(0, (0, 1), (1, 0)))
        client, entries = job[2].client, [entry(0, (2, 0, 1.0)), entry(1, (2, 1, 1.0))]
        for clock in (0, 1):
            given = gradients(clock)
            first = client.push_early(clock, {4: given[4], 3: given[3]})
            second = client.push_early(clock, {0: given[0]})
            early = {4: first, 3: first, 0: second}
            rest = [garbage()[i] if i in early else one for i, one in enumerate(given)]
            client.push(clock, rest, early=early)
            sent = client.traffic.take().pushed  # each gradient once
            assert sent == sum(one.numel() * one.element_size() for one in given)
            client.push(clock, garbage())  # it counts once
            client.traffic.take()
            reference.apply((1.0, given))
        client.pull(2, entries)
        assert reference.is_equal(job[2].parameters)
        job[0].die()
        job.follow(job.serving(1, (1, ALONE), (1, ALONE), lost=[0], applied=0))
        client.pull(2, entries)
        assert reference.is_equal(job[2].parameters)


def test_a_piece_that_was_refused_is_pushed_again_with_the_rest() -> None:
    reference = Reference()
    with workers(2, SHARED) as job:
        job.follow(job.serving(0, (0, ALONE)))
        given = gradients(0)
        spoiled = torch.full(SHAPES[1], float("nan"))
        number = job[1].client.push_early(0, {1: spoiled})
        job[1].client.push(0, given, early={1: number})
        job[1].client.pull(1, [entry(0, (1, 0, 1.0))])
        reference.apply((1.0, given))
        assert reference.is_equal(job[1].parameters)


def test_pieces_alone_never_count() -> None:
    one = shard()
    one.stage_early(0, 0, 7, dict(enumerate(gradients(0))))
    with pytest.raises(MismatchError, match="has not pushed that"):
        one.apply([entry(0, (0, 0, 1.0))])
    assert one.applied == 0


@pytest.mark.parametrize(
    ("clock", "number", "why"), [(0, 8, "another number"), (1, 7, "another clock")]
)
def test_a_push_counts_on_the_pieces_that_it_names_or_is_refused(
    clock: int, number: int, why: str
) -> None:
    one = shard()
    one.stage_early(0, 0, 7, {2: gradients(0)[2]})
    with pytest.raises(PiecesMissing):
        one.stage(0, clock, Push(NONE), {2: number})
    with pytest.raises(MismatchError, match="has not pushed that"):
        one.apply([entry(0, (0, clock, 1.0))])
    one.stage(0, 0, Push(NONE), {2: 7})
    one.apply([entry(0, (0, 0, 1.0))])
    assert torch.equal(one.values()[2], model()[2].detach().add(gradients(0)[2], alpha=-0.1))


def test_a_later_piece_takes_the_place_of_an_earlier_one_and_a_copy_has_it() -> None:
    one, other = shard(), shard()
    one.stage_early(0, 0, 7, {2: garbage()[2]})
    one.stage_early(0, 0, 8, {2: gradients(0)[2]})
    other.load(one.export())
    with pytest.raises(PiecesMissing):
        other.stage(0, 0, Push(NONE), {2: 7})
    for each in (one, other):
        each.stage(0, 0, Push(NONE), {2: 8})
        each.apply([entry(0, (0, 0, 1.0))])
    assert torch.equal(one.values()[2], other.values()[2])
    assert not torch.equal(one.values()[2], model()[2])


def test_what_is_gone_takes_its_pieces_with_it() -> None:
    one = shard()
    one.stage_early(0, 3, 7, {0: gradients(0)[0]})
    one.reset([p.detach() for p in model()], 0, history=1)
    with pytest.raises(PiecesMissing):
        one.stage(0, 3, Push(NONE), {0: 7})
    one.stage_early(1, 0, 9, {0: gradients(0)[0]})
    one.forget(1)
    with pytest.raises(MismatchError, match="not known any more"):
        one.stage_early(1, 0, 9, {0: gradients(0)[0]})
    assert one.export()["early"] == []


def test_pieces_are_checked_as_pushes_are() -> None:
    one = shard()
    with pytest.raises(GradientError, match="not finite"):
        one.stage_early(0, 0, 7, {0: torch.full(SHAPES[0], float("inf"))})
    with pytest.raises(MismatchError, match="all workers must train the same model"):
        one.stage_early(0, 0, 7, {0: torch.zeros(2)})
    with pytest.raises(MismatchError, match="does not hold parameter 9"):
        one.stage_early(0, 0, 7, {9: torch.zeros(2)})
    assert one.export()["early"] == []
