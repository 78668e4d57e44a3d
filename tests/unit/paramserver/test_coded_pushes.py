# SPDX-License-Identifier: Apache-2.0
"""Pushes in fewer bytes: what servers keep is what was decoded, and what was left out comes later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from msgspec.structs import replace
from serving_workers import ALONE, Reference, entry, model, momentum, workers

from gangline.paramserver.service.coding import CODED, Encoder, decoded
from gangline.paramserver.service.pushes import Push, Rows
from gangline.paramserver.service.shard import Shard
from gangline.spec.errors import GradientError, MismatchError, UsageError
from gangline.spec.exchange.compression import Compression
from wire_members import SHARED, WAYS

if TYPE_CHECKING:
    from gangline.collectives.wire import WireOptions

CODECS = ("bf16", "fp16", "8-bit", "1-bit", "top-k(0.25)", "sparse-binary(0.25)")
FEEDBACK = ("8-bit", "1-bit", "top-k(0.25)", "sparse-binary(0.25)")
SIZE = 300


def vector(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def encoder(name: str) -> Encoder:
    return Encoder(Compression.parse(name), seed=0)


@pytest.mark.parametrize("name", FEEDBACK)
def test_all_that_was_left_out_is_in_what_is_kept(name: str) -> None:
    one = encoder(name)
    given, got = torch.zeros(SIZE), torch.zeros(SIZE)
    for clock in range(6):
        message = one.encode(3, clock, vector(clock))
        got += decoded(message, torch.zeros(SIZE), "p")
        given += vector(clock)
    left = one._left[3].after
    assert left is not None
    assert left.abs().max() > 0
    torch.testing.assert_close(got + left, given, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FEEDBACK)
def test_a_push_that_is_made_again_is_coded_alike(name: str) -> None:
    one = encoder(name)
    one.encode(0, 0, vector(0))
    first, again = one.encode(0, 1, vector(1)), one.encode(0, 1, vector(1))
    assert torch.equal(first["body"], again["body"])
    assert not torch.equal(first["body"], encoder(name).encode(0, 1, vector(1))["body"])


def test_what_would_not_be_shorter_travels_as_it_is() -> None:
    one, short = encoder("8-bit"), torch.ones(2)
    rows = Rows(torch.tensor([0]), torch.ones(1, 2))
    assert one.encode(0, 0, short) is short
    assert one.encode(0, 0, rows) is rows
    assert one.encode(0, 0, None) is None
    spoiled = torch.full((SIZE,), float("nan"))
    assert one.encode(0, 0, spoiled) is spoiled


def test_a_codec_whose_messages_are_summed_is_refused() -> None:
    with pytest.raises(UsageError, match="powersgd"):
        encoder("powersgd(4)")


@pytest.mark.parametrize(
    "message",
    [
        {CODED: "8-bit", "body": torch.zeros(3, dtype=torch.uint8)},
        {CODED: "top-k(0.25)", "body": torch.full((8,), 255, dtype=torch.uint8)},
        {CODED: "no-such", "body": torch.zeros(3, dtype=torch.uint8)},
        {CODED: "8-bit", "body": torch.zeros(3)},
        {CODED: "8-bit"},
        {"body": torch.zeros(3, dtype=torch.uint8)},
    ],
)
def test_a_message_that_cannot_be_read_is_refused_and_nothing_is_kept(message: object) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(SIZE))]
    shard = Shard(0, [0], parameters, momentum(parameters))
    with pytest.raises(MismatchError, match="parameter 0"):
        shard.stage(0, 0, Push((message,)))  # type: ignore[arg-type]
    assert shard.export()["staged"] == {}


def test_what_is_decoded_must_be_finite() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(SIZE))]
    shard = Shard(0, [0], parameters, momentum(parameters))
    message = encoder("fp16").encode(0, 0, torch.full((SIZE,), 1e6))
    with pytest.raises(GradientError, match="not finite"):
        shard.stage(0, 0, Push((message,)))


@WAYS
@pytest.mark.parametrize("name", CODECS)
def test_a_plain_replay_of_decoded_gradients_gives_the_same_bits(
    options: WireOptions, name: str
) -> None:
    """Also where some are pushed early, and on the replica that takes over."""
    reference, twin = Reference(), encoder(name)
    with workers(3, options) as job:
        first = replace(job.serving(0, (0, 1)), compression=name)
        job.follow(first)
        client, entries = job[2].client, []
        for clock in range(3):
            given = [torch.randn(p.shape) for p in model()]
            number = client.push_early(clock, {0: given[0], 2: given[2]})
            client.push(clock, given, early={0: number, 2: number})
            client.push(clock, given)
            entries.append(entry(clock, (2, clock, 1.0)))
            kept = [twin.encode(index, clock, one) for index, one in enumerate(given)]
            pairs = zip(kept, model(), strict=True)
            plain = [decoded(one, p, "p") if isinstance(one, dict) else one for one, p in pairs]
            reference.apply((1.0, plain))
            client.pull(clock + 1, entries)
            assert reference.is_equal(job[2].parameters)
        job[0].die()
        job.follow(replace(job.serving(1, (1, ALONE), lost=[0], applied=3), compression=name))
        client.pull(3, entries)
        assert reference.is_equal(job[2].parameters)


def test_a_client_says_at_once_that_it_cannot_code_so() -> None:
    with workers(1, SHARED) as job:
        serving = replace(job.serving(0, (0, ALONE)), compression="powersgd(2)")
        with pytest.raises(UsageError, match="powersgd"):
            job[0].client.follow(serving)
