# SPDX-License-Identifier: Apache-2.0
"""Compressed sums: alike on all members, with nothing lost for good, and with their bytes counted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from gangline.collectives import SoloGroup, all_reduce_unit
from gangline.collectives.compression import Compressor, powersgd
from gangline.collectives.compression.codecs import codec_of
from gangline.collectives.compression.gathering import Message
from gangline.spec.errors import ExchangeError, ExchangeMismatch, UsageError
from gangline.spec.exchange.compression import KINDS, NONE, POWERSGD, TERNGRAD, Compression
from gangline.spec.exchange.compression_format import FRAME_BYTES, Shape, sent_bytes
from memory_members import run_in_memory
from tree_members import ring, run_tree
from wire_members import TCP, run_members

if TYPE_CHECKING:
    from gangline.collectives import Group

LOSSY = tuple(kind for kind in KINDS if kind != NONE)
REMEMBERING = tuple(kind for kind in LOSSY if kind not in ("fp16", "bf16", TERNGRAD))
LENGTH = 3000


def drawn(rank: int, length: int = LENGTH) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(rank))


def compressor(name: str) -> Compressor:
    return Compressor(Compression.parse(name), seed=3)


def sums(name: str, size: int, *, rounds: int = 1) -> list[list[torch.Tensor]]:
    """Each member's results of summing the same tensors again and again."""

    def body(group: Group) -> list[torch.Tensor]:
        one, results = compressor(name), []
        for _ in range(rounds):
            tensor = drawn(group.rank)
            one.all_reduce(group, tensor)
            results.append(tensor)
        return results

    return run_in_memory(size, body)


def total(size: int) -> torch.Tensor:
    return sum((drawn(rank) for rank in range(size)), torch.zeros(LENGTH))


# --- the sum -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", KINDS)
def test_members_get_the_same_bits(name: str, size: int) -> None:
    first, *others = sums(name, size, rounds=3)
    for other in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, other, strict=True))


@pytest.mark.parametrize("name", [kind for kind in LOSSY if kind != POWERSGD])
def test_the_sum_is_that_of_what_each_message_says(name: str) -> None:
    expected = torch.zeros(LENGTH)
    for rank in range(2):
        codec = codec_of(Compression.parse(name), generator=np.random.default_rng((3, rank, 1)))
        expected += codec.decode(codec.encode(drawn(rank)), LENGTH)
    assert torch.equal(sums(name, 2)[0][0], expected)


@pytest.mark.parametrize("name", KINDS)
def test_the_header_travels_along(name: str) -> None:
    def body(group: Group) -> list[int]:
        header = np.array([group.rank, -group.rank, 7], dtype=np.int64)
        compressor(name).all_reduce(group, drawn(group.rank), header)
        return header.tolist()

    assert run_in_memory(3, body) == [[2, 0, 7]] * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_tensors_of_other_types_and_strides_are_summed_as_float32(dtype: torch.dtype) -> None:
    def body(group: Group) -> torch.Tensor:
        tensor = drawn(group.rank).view(50, 60).T.to(dtype)
        compressor("8-bit").all_reduce(group, tensor)
        return tensor

    first, second = run_in_memory(2, body)
    assert torch.equal(first, second)
    assert first.dtype == dtype
    assert torch.allclose(first.float(), total(2).view(50, 60).T, atol=0.06)


@pytest.mark.parametrize("name", LOSSY)
def test_the_users_default_type_changes_nothing(name: str) -> None:
    expected = sums(name, 2)[0][0]

    def body(group: Group) -> torch.Tensor:
        tensor = given[group.rank].clone()
        compressor(name).all_reduce(group, tensor)
        return tensor

    given = [drawn(0), drawn(1)]
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(run_in_memory(2, body)[0], expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("length", [0, 1])
def test_what_would_not_become_shorter_is_sent_as_it_is(name: str, length: int) -> None:
    def body(group: Group) -> torch.Tensor:
        tensor = drawn(group.rank, length)
        compressor(name).all_reduce(group, tensor)
        return tensor

    exact = drawn(0, length) + drawn(1, length)
    assert all(torch.equal(result, exact) for result in run_in_memory(2, body))


@pytest.mark.parametrize("name", LOSSY)
def test_a_group_of_one_has_its_sum_already_and_encodes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compressor, "_sum", None)
    one, tensor = compressor(name), drawn(0)
    one.all_reduce(SoloGroup(), tensor)
    assert torch.equal(tensor, drawn(0))
    assert one.traffic.sent_bytes == 0


# --- what is left out --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REMEMBERING)
def test_nothing_is_lost_for_good(name: str) -> None:
    """The results, and what is still kept, are the sum of all inputs."""
    keepers = [compressor(name), compressor(name)]

    def body(group: Group) -> torch.Tensor:
        results = torch.zeros(LENGTH)
        for _ in range(6):
            tensor = drawn(group.rank)
            keepers[group.rank].all_reduce(group, tensor)
            results += tensor
        return results

    results = run_in_memory(2, body)[0]
    kept = [torch.zeros(LENGTH), torch.zeros(LENGTH)]
    for keeper, tensor in zip(keepers, kept, strict=True):
        keeper.all_reduce(SoloGroup(), tensor)  # nothing is compressed in a group of one
        assert 0 < tensor.norm() < 6 * drawn(0).norm()
    assert torch.allclose(results + kept[0] + kept[1], 6 * total(2), atol=1e-4)


@pytest.mark.parametrize(
    "name", ["8-bit", "1-bit", "top-k(0.1)", "sparse-binary(0.1)", "powersgd(8)"]
)
def test_what_was_left_out_comes_later(name: str) -> None:
    """What is kept stays bounded, so the mean of the results approaches the sum."""
    results = sums(name, 2, rounds=32)[0]
    errors = [float((sum(results[:count]) / count - total(2)).norm()) for count in (1, 8, 32)]
    assert errors[2] < 0.6 * errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_half_precision_remembers_nothing(name: str) -> None:
    first, second = sums(name, 2, rounds=2)[0]
    assert torch.equal(first, second)


def test_terngrad_is_right_on_average() -> None:
    results = sums(TERNGRAD, 2, rounds=30)[0]
    assert not torch.equal(results[0], results[1])
    single = (results[0] - total(2)).norm()
    assert (sum(results) / 30 - total(2)).norm() < 0.4 * single


def test_each_key_has_a_memory_of_its_own() -> None:
    def body(group: Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        one = compressor("top-k")
        first, other, again = drawn(group.rank), drawn(group.rank), drawn(group.rank)
        one.all_reduce(group, first, key="a")
        one.all_reduce(group, other, key="b")
        one.all_reduce(group, again, key="a")
        return first, other, again

    first, other, again = run_in_memory(2, body)[0]
    assert torch.equal(first, other)
    assert not torch.equal(first, again)


def test_what_was_left_out_is_kept_when_the_group_changes() -> None:
    keepers = [compressor("top-k"), compressor("top-k")]

    def body(group: Group) -> torch.Tensor:
        tensor = drawn(group.rank)
        keepers[group.rank].all_reduce(group, tensor)
        return tensor

    first, second = run_in_memory(2, body)[0], run_in_memory(2, body)[0]
    assert torch.equal(torch.stack([first, second]), torch.stack(sums("top-k", 2, rounds=2)[0]))


@pytest.mark.parametrize("name", REMEMBERING)
def test_an_exchange_that_was_not_used_can_be_undone(name: str) -> None:
    def body(group: Group) -> list[torch.Tensor]:
        one, results = compressor(name), []
        one.undo()  # nothing was exchanged yet
        for is_used in (True, False, True):
            tensor = drawn(group.rank)
            one.all_reduce(group, tensor)
            results.append(tensor)
            if not is_used:
                one.undo()
        return results

    first, unused, again = run_in_memory(2, body)[0]
    assert torch.equal(unused, again)
    assert not torch.equal(first, unused)


def test_what_was_left_out_can_be_forgotten() -> None:
    def body(group: Group) -> bool:
        one, first, second = compressor("1-bit"), drawn(group.rank), drawn(group.rank)
        one.all_reduce(group, first)
        one.forget()
        one.all_reduce(group, second)
        return torch.equal(first, second)

    assert run_in_memory(2, body) == [True, True]


# --- PowerSGD ----------------------------------------------------------------------------------------


def test_powersgd_follows_its_definition() -> None:
    rank, shape = 2, Shape.of(LENGTH)
    right = torch.from_numpy(powersgd.first_right(rank, LENGTH, seed=3))
    errors = [torch.zeros(shape) for _ in range(2)]
    padded = [
        torch.nn.functional.pad(drawn(m), (0, shape.height * shape.width - LENGTH)).view(shape)
        for m in range(2)
    ]
    results = sums("powersgd(2)", 2, rounds=4)[0]
    for result in results:
        matrices = [matrix + error for matrix, error in zip(padded, errors, strict=True)]
        left = sum(matrix @ right for matrix in matrices) / 2
        basis, _ = torch.linalg.qr(left)
        right = sum(matrix.T @ basis for matrix in matrices) / 2
        mean = basis @ right.T
        # Padding is no part of the tensor: nothing of it is kept.
        errors = [(matrix - mean) for matrix in matrices]
        for error in errors:
            error.view(-1)[LENGTH:] = 0
        assert torch.allclose(result, 2 * mean.reshape(-1)[:LENGTH], atol=1e-4)


def test_powersgd_finds_a_sum_of_low_rank() -> None:
    left, right = drawn(0, 80).view(40, 2), drawn(1, 80).view(40, 2)

    def body(group: Group) -> torch.Tensor:
        one = compressor("powersgd(3)")
        for _ in range(3):
            tensor = (left @ right.T * (group.rank + 1)).reshape(-1)
            one.all_reduce(group, tensor)
        return tensor

    assert torch.allclose(run_in_memory(2, body)[0], 3 * (left @ right.T).reshape(-1), atol=1e-4)


def test_powersgd_goes_on_after_a_tensor_of_zeros() -> None:
    def body(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        one, nothing, something = compressor(POWERSGD), torch.zeros(LENGTH), drawn(group.rank)
        one.all_reduce(group, nothing)
        one.all_reduce(group, something)
        return nothing, something

    nothing, something = run_in_memory(2, body)[0]
    assert not nothing.any()
    assert torch.equal(something, sums(POWERSGD, 2)[0][0])


# --- what is not finite ------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", LOSSY)
def test_what_is_not_finite_stays_so_and_is_not_remembered(name: str, wrong: float) -> None:
    def body(group: Group) -> list[torch.Tensor]:
        one = compressor(name)
        tensors = [drawn(group.rank) for _ in range(3)]
        if group.rank == 1:
            tensors[1][7] = wrong
        for tensor in tensors:
            one.all_reduce(group, tensor)
        return tensors

    mine, theirs = run_in_memory(2, body)
    assert not mine[1].isfinite().any()
    assert not theirs[1].isfinite().any()
    if name != TERNGRAD:
        expected = sums(name, 2, rounds=2)[0]
        assert torch.equal(torch.stack([mine[0], mine[2]]), torch.stack(expected))


def test_what_is_not_finite_stays_so_where_half_precision_is_summed_on_the_way() -> None:
    def body(group: Group) -> torch.Tensor:
        tensor = drawn(group.rank)
        if group.rank == 2:
            tensor[7] = math.nan
        compressor("bf16").all_reduce(group, tensor)
        return tensor

    for result in run_in_memory(4, body):
        assert result[7].isnan()
        assert result.isfinite().sum() == LENGTH - 1


# --- weighted means ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "bf16", "8-bit"])
def test_a_mean_is_weighted(name: str) -> None:
    def body(group: Group) -> tuple[float, torch.Tensor]:
        tensor = drawn(group.rank) if group.rank else torch.full((LENGTH,), math.nan)
        weight = compressor(name).mean(group, tensor, weight=[0.0, 1.0, 3.0][group.rank])
        return weight, tensor

    expected = (drawn(1) + 3 * drawn(2)) / 4
    for weight, result in run_in_memory(3, body):
        assert weight == 4.0
        assert torch.allclose(result, expected, atol=0.05)


def test_a_mean_that_nobody_counts_in_is_zero() -> None:
    tensor = drawn(0)
    assert compressor("8-bit").mean(SoloGroup(), tensor, weight=0.0) == 0.0
    assert not tensor.any()


# --- bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_the_bytes_that_are_counted_are_those_on_the_link(name: str) -> None:
    def body(group: Group) -> tuple[int, int, int]:
        one = compressor(name)
        for _ in range(3):
            one.all_reduce(group, drawn(group.rank, 40_000))
        moved = sum(hop.bytes for hop in group.hops())
        return one.traffic.exchanges, 2 * one.traffic.sent_bytes, moved

    for exchanges, counted, moved in run_members(2, body, options=TCP):
        assert exchanges == 3
        assert counted == moved  # sent, and received as much


def test_the_dense_bytes_are_those_of_a_ring() -> None:
    def body(group: Group) -> tuple[int, int]:
        one = compressor("8-bit")
        one.all_reduce(group, drawn(group.rank))
        return one.traffic.dense_bytes, one.traffic.sent_bytes

    expected = sent_bytes(Compression.parse("8-bit"), LENGTH, num_members=3)
    assert run_in_memory(3, body)[0] == (round(2 * 2 / 3 * 4 * LENGTH), expected)


# --- what goes wrong ---------------------------------------------------------------------------------


def test_members_with_different_compressions_are_told_so() -> None:
    names = ["8-bit", "bf16"]

    def body(group: Group) -> None:
        compressor(names[group.rank]).all_reduce(group, drawn(group.rank))

    with pytest.raises(ExchangeMismatch, match="do not make the same call"):
        run_members(2, body)


def message(**changes: object) -> Message:
    fields = {"kind": "8-bit", "length": 4, "body": np.arange(4, dtype=np.uint8)}
    return Message(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_message_is_what_was_encoded() -> None:
    header = np.array([5, -5], dtype=np.int64)
    sent = message(header=header, is_finite=False)
    read = message(header=np.zeros(2, dtype=np.int64)).answer(sent.encode(), sender=1)
    assert (read.kind, read.length, read.is_finite) == ("8-bit", 4, False)
    assert read.body.tolist() == [0, 1, 2, 3]
    assert read.header is not None
    assert read.header.tolist() == [5, -5]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": "1-bit"}, "member 1 sent 4 elements by 1-bit .* this one 4 by 8-bit"),
        ({"length": 5}, "member 1 sent 5 elements by 8-bit"),
        ({"header": np.zeros(2, dtype=np.int64)}, "with 2 header words, .* with 0"),
    ],
)
def test_a_message_that_does_not_match_is_refused(
    changes: dict[str, object], expected: str
) -> None:
    with pytest.raises(ExchangeError, match=expected):
        message().answer(message(**changes).encode(), sender=1)


def test_a_corrupt_message_is_refused() -> None:
    encoded = message().encode()
    with pytest.raises(ExchangeError, match="member 2 sent 5 bytes, too few"):
        message().answer(encoded[:5], sender=2)
    for place in (0, 5):  # the magic, and a flag that does not exist
        wrong = encoded.copy()
        wrong[place] ^= 0x80
        with pytest.raises(ExchangeError, match="member 2 sent a corrupt compressed message"):
            message().answer(wrong, sender=2)
    assert len(encoded) == FRAME_BYTES + 4


def test_what_cannot_be_compressed_is_refused() -> None:
    one = compressor("8-bit")
    with pytest.raises(UsageError, match=r"8-bit is for floating-point tensors, not torch.int64"):
        one.all_reduce(SoloGroup(), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(UsageError, match="a weight is finite and 0 or more, not -1"):
        one.mean(SoloGroup(), drawn(0), weight=-1.0)
    one.all_reduce(SoloGroup(), drawn(0), key="model")
    with pytest.raises(
        UsageError, match=r"of 5 elements follows one of 3000 under the key 'model'"
    ):
        one.all_reduce(SoloGroup(), drawn(0, 5), key="model")


# --- in a tree of groups -----------------------------------------------------------------------------

TREE = ring(ring(0, 1), ring(2, 3), ring(4))


@pytest.mark.parametrize("name", ["bf16", "8-bit", "powersgd(2)"])
@pytest.mark.parametrize("group", ["top", "top.0"])
def test_a_tree_compresses_units_of_the_gradient_and_nothing_else(name: str, group: str) -> None:
    tree = TREE.compressed(group, Compression.parse(name))

    def body(members: Group) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        unit, other = drawn(members.rank), drawn(members.rank)
        header = np.array([members.rank], dtype=np.int64)
        all_reduce_unit(members, unit, header, unit=0)
        members.all_reduce(other)
        return unit, other, header.tolist()

    results = run_tree(tree, body)
    for unit, other, header in results:
        assert torch.equal(unit, results[0][0])
        assert torch.allclose(other, total(5), atol=1e-5)
        assert not torch.equal(unit, other)
        assert header == [4]


def test_a_tree_remembers_what_each_piece_of_each_unit_left_out() -> None:
    tree = TREE.compressed("top", Compression.parse("top-k(0.3)"))

    def body(members: Group) -> torch.Tensor:
        sums = torch.zeros(LENGTH)
        for _ in range(10):
            for unit in range(2):
                tensor = drawn(members.rank) * (unit + 1)
                all_reduce_unit(members, tensor, None, unit=unit)
            sums += tensor / 10
        return sums

    results = run_tree(tree, body)
    assert (results[0] - 2 * total(5)).norm() < 0.25 * (2 * total(5)).norm()


# --- learning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("none", "fp16", "bf16", "8-bit", "1-bit", "terngrad"),
        *("top-k(0.05)", "sparse-binary(0.1)", "powersgd(2)"),
    ],
)
def test_a_regression_is_learnt(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(128, 64, generator=generator)
    truth = torch.randn(64, generator=generator)
    targets = inputs @ truth

    def body(group: Group) -> torch.Tensor:
        one, weights = compressor(name), torch.zeros(64)
        mine = slice(group.rank * 64, (group.rank + 1) * 64)
        for _ in range(250):
            gradient = inputs[mine].T @ (inputs[mine] @ weights - targets[mine]) / 128
            one.all_reduce(group, gradient)
            weights -= 0.1 * gradient
        return weights

    first, second = run_in_memory(2, body)
    assert torch.equal(first, second)
    assert (first - truth).norm() < 0.1 * truth.norm()
