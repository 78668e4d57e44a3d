# SPDX-License-Identifier: Apache-2.0
"""What each codec makes of a tensor, against its definition written out element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gangline.collectives.compression import golomb, powersgd
from gangline.collectives.compression.codecs import codec_of
from gangline.collectives.compression.on_device import device_codec_of
from gangline.spec.errors import ExchangeError, UsageError
from gangline.spec.exchange.compression import KINDS, NONE, POWERSGD, Compression
from gangline.spec.exchange.compression_format import (
    CHUNK,
    Shape,
    message_bytes,
    num_kept,
    position_bits,
    remainder_bits,
)

NAMES = tuple(kind for kind in KINDS if kind not in (NONE, POWERSGD))
LENGTHS = (1, 2, 7, CHUNK - 1, CHUNK, CHUNK + 1, 64 * CHUNK + 3)
floats = npst.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


def codec(name: str, seed: int = 0):
    return codec_of(Compression.parse(name), generator=np.random.default_rng(seed))


def drawn(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(seed))


def round_trip(name: str, flat: torch.Tensor) -> torch.Tensor:
    one = codec(name)
    return one.decode(one.encode(flat), flat.numel())


def by_chunks(flat: torch.Tensor) -> list[list[float]]:
    return [part.tolist() for part in flat.split(CHUNK)]


# --- the sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_message_is_as_long_as_the_format_says(name: str, length: int) -> None:
    compression, one = Compression.parse(name), codec(name)
    message = one.encode(drawn(length))
    assert message.dtype == np.uint8
    if one.message_bytes(length) is None:
        assert message.size <= 1.2 * message_bytes(compression, length) + 2
    else:
        assert message.size == one.message_bytes(length) == message_bytes(compression, length)
    assert one.decode(message, length).shape == (length,)


def test_what_is_no_message_of_one_member_has_no_codec() -> None:
    with pytest.raises(UsageError, match=r"powersgd\(4\) is no message of one member"):
        codec("powersgd")


# --- where the tensor is ------------------------------------------------------------------------------

ON_DEVICE = ("bf16", "fp16", "8-bit", "top-k(0.1)")


def assert_alike_on_a_device(name: str, flat: torch.Tensor) -> None:
    there = device_codec_of(Compression.parse(name), flat.device)
    here, length = codec(name), flat.numel()
    assert there is not None
    messages = there.encode(flat), here.encode(flat)
    # Added to zeros, as sums of messages begin: there a zero has no sign.
    sums = [torch.zeros(length) + one.decode(m, length) for one in (there, here) for m in messages]
    assert len({total.numpy().tobytes() for total in sums}) == 1


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ON_DEVICE)
def test_a_device_says_and_hears_the_same_as_host_memory(name: str, length: int) -> None:
    assert_alike_on_a_device(name, drawn(length))


@given(flat=floats)
@pytest.mark.parametrize("name", ON_DEVICE)
def test_a_device_rounds_every_number_as_host_memory_does(name: str, flat: np.ndarray) -> None:
    assert_alike_on_a_device(name, torch.from_numpy(flat))


@pytest.mark.parametrize("name", ["8-bit", "top-k(0.1)", "bf16"])
def test_a_device_refuses_corrupt_messages_too(name: str) -> None:
    there = device_codec_of(Compression.parse(name), torch.device("cpu"))
    assert there is not None
    message = there.encode(drawn(100))
    with pytest.raises(ExchangeError, match="corrupt"):
        there.decode(message[:-1], 100)
    if name != "bf16":
        with pytest.raises(ExchangeError, match="corrupt"):
            there.decode(np.full_like(message, 255), 100)


@pytest.mark.parametrize("name", ["1-bit", "terngrad", "sparse-binary(0.1)", "powersgd(4)"])
def test_the_others_come_to_host_memory_first(name: str) -> None:
    assert device_codec_of(Compression.parse(name), torch.device("cuda")) is None


# --- the numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_precision_rounds_as_torch_does(name: str, dtype: torch.dtype) -> None:
    flat = drawn(1000) * 1e-3
    assert torch.equal(round_trip(name, flat), flat.to(dtype).float())


def test_what_is_too_large_for_fp16_becomes_infinite() -> None:
    assert round_trip("fp16", torch.tensor([7e4, -7e4])).tolist() == [math.inf, -math.inf]
    assert round_trip("bf16", torch.tensor([7e4])).isfinite().all()


def test_8_bit_has_the_levels_of_its_definition() -> None:
    flat = drawn(CHUNK + 100)
    expected = []
    for chunk in by_chunks(flat):
        step = (max(chunk) - min(chunk)) / 255
        low = round(max(chunk) / step) - 255
        codes = [min(255, max(0, round(x / step) - low)) for x in chunk]
        expected += [min(max((c + low) * step, min(chunk)), max(chunk)) for c in codes]
    assert torch.allclose(round_trip("8-bit", flat), torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]),
        ([-1.0, 0.0, 1.0], None),  # the ends fall between two levels: they must not wrap around
        ([5.0] * 4, [5.0] * 4),
        ([0.0], [0.0]),
        ([3.4e38, -3.4e38], None),
        ([1e-40, 0.0, -1e-42], None),
        ([1000.0, 1000.001], None),
    ],
)
def test_8_bit_is_clamped_on_both_sides(given: list[float], expected: list[float] | None) -> None:
    flat = torch.tensor(given)
    result = round_trip("8-bit", flat)
    if expected is not None:
        assert result.tolist() == expected
    half_step = (max(given) - min(given)) / 255 / 2
    assert (result.double() - flat.double()).abs().max() <= half_step * 1.001 + 1e-44
    assert result.min() >= flat.min()
    assert result.max() <= flat.max()


@settings(max_examples=40, deadline=None)
@given(floats)
def test_8_bit_is_off_by_half_a_step_at_most(array: np.ndarray) -> None:
    wide = array.astype(np.float64)
    half_step = (wide.max() - wide.min()) / 255 / 2
    error = np.abs(round_trip("8-bit", torch.from_numpy(array)).double().numpy() - wide).max()
    assert error <= half_step * 1.001 + np.abs(wide).max() * 1e-7 + 1e-44


def test_1_bit_sends_the_mean_of_either_sign() -> None:
    flat = drawn(2 * CHUNK + 100)
    expected = []
    for chunk in by_chunks(flat):
        positive = [x for x in chunk if x >= 0]
        negative = [x for x in chunk if x < 0]
        up, down = (math.fsum(s) / max(len(s), 1) for s in (positive, negative))
        expected += [up if x >= 0 else down for x in chunk]
    assert torch.allclose(round_trip("1-bit", flat), torch.tensor(expected), rtol=1e-6, atol=0)
    assert round_trip("1-bit", torch.tensor([2.0, 4.0])).tolist() == [3.0, 3.0]
    assert round_trip("1-bit", torch.tensor([-2.0])).tolist() == [-2.0]


def test_terngrad_has_three_values_and_is_right_on_average() -> None:
    flat, one = drawn(500), codec("terngrad")
    sigma = math.sqrt(math.fsum(x * x for x in flat.tolist()) / 500)
    clipped = flat.clamp(-2.5 * sigma, 2.5 * sigma)
    scale = clipped.abs().max()
    total = torch.zeros(500)
    for _ in range(400):
        result = one.decode(one.encode(flat), 500)
        assert torch.allclose(result[result != 0].abs(), scale)
        assert ((result == 0) | (result.sign() == flat.sign())).all()
        total += result
    # The variance of one draw is at most s²/4; five of its deviations, over 400 draws.
    assert (total / 400 - clipped).abs().max() < 5 * scale / 2 / math.sqrt(400)


def test_terngrad_draws_from_its_generator() -> None:
    flat = drawn(300)
    first, again, other = (codec("terngrad", seed).encode(flat) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert round_trip("terngrad", torch.zeros(5)).tolist() == [0.0] * 5


def test_top_k_sends_the_largest_elements_exactly() -> None:
    flat = drawn(1000)
    order = sorted(range(1000), key=lambda i: -abs(flat[i].item()))
    expected = torch.zeros(1000)
    expected[order[:10]] = flat[order[:10]]
    assert torch.equal(round_trip("top-k(0.01)", flat), expected)
    assert round_trip("top-k(0.01)", torch.tensor([1.0, -3.0])).tolist() == [0.0, -3.0]


@pytest.mark.parametrize("sign", [1, -1])
def test_sparse_binary_sends_one_mean_of_one_sign(sign: int) -> None:
    flat = drawn(1000)
    flat[500] = sign * 50.0  # this sign's mean is the greater one
    values = sorted((x * sign for x in flat.tolist()), reverse=True)[:10]
    expected = torch.where(flat * sign >= values[-1], sign * math.fsum(values) / 10, 0.0)
    assert torch.allclose(round_trip("sparse-binary(0.01)", flat), expected, rtol=1e-6, atol=0)


def test_sparse_binary_sends_nothing_where_all_is_zero() -> None:
    assert round_trip("sparse-binary", torch.zeros(300)).tolist() == [0.0] * 300
    # Only what has the sign counts, where that is less than the fraction.
    assert round_trip("sparse-binary(0.5)", torch.tensor([4.0, 0.0, 0.0, -1.0])).tolist() == [
        *(4.0, 0.0, 0.0, 0.0)
    ]


@settings(max_examples=30, deadline=None)
@given(floats)
@pytest.mark.parametrize("name", ["8-bit", "1-bit", "top-k(0.3)", "sparse-binary(0.3)"])
def test_what_is_left_out_is_never_more_than_there_was(name: str, array: np.ndarray) -> None:
    left_out = round_trip(name, torch.from_numpy(array)).double().numpy() - array
    assert np.linalg.norm(left_out) <= np.linalg.norm(array.astype(np.float64)) * 1.001 + 1e-40


# --- positions ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 5000), max_size=60), st.integers(0, 12))
def test_positions_survive_golombs_code(chosen: set[int], bits: int) -> None:
    positions = np.array(sorted(chosen), dtype=np.int64)
    code = golomb.encode(positions, bits=bits)
    assert (golomb.decode(code, count=len(positions), bits=bits, length=5001) == positions).all()


def test_golombs_code_takes_the_bits_of_its_formula() -> None:
    rng = np.random.default_rng(0)
    for fraction in (0.5, 0.1, 0.01, 0.001):
        positions = np.flatnonzero(rng.random(400_000) < fraction)
        code = golomb.encode(positions, bits=remainder_bits(fraction))
        assert 8 * len(code) / len(positions) == pytest.approx(position_bits(fraction), rel=0.05)


# --- PowerSGD's matrices -----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 10, 16, 17, 1000])
def test_a_flat_tensor_becomes_a_nearly_square_matrix(length: int) -> None:
    height, width = Shape.of(length)
    assert length <= height * width < length + height
    assert abs(height - width) <= 1


def test_columns_become_orthonormal() -> None:
    made = powersgd.orthonormal(drawn(60 * 4).view(60, 4).numpy())
    assert np.allclose(made.T @ made, np.eye(4), atol=1e-6)


def test_a_column_that_depends_on_others_becomes_zero() -> None:
    column = drawn(50).numpy()
    made = powersgd.orthonormal(np.stack([column, 2 * column, np.zeros(50, np.float32)], axis=1))
    assert np.allclose(np.linalg.norm(made, axis=0), [1, 0, 0])


# --- what is no message ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_message_that_is_cut_off_is_refused(name: str) -> None:
    one = codec(name)
    message = one.encode(drawn(500))
    for length in (0, 3, message.size - 1):
        with pytest.raises(ExchangeError, match=r"a corrupt .*message: \d+ bytes"):
            one.decode(message[:length], 500)


def test_positions_outside_of_the_tensor_are_refused() -> None:
    top_k = codec("top-k")
    message = top_k.encode(drawn(500))
    message[-1] = 127
    with pytest.raises(ExchangeError, match="corrupt top-k message: a position outside of 500"):
        top_k.decode(message, 500)
    sparse = codec("sparse-binary")
    with pytest.raises(ExchangeError, match=r"a corrupt message: position \d+ of 3 elements"):
        sparse.decode(sparse.encode(drawn(500)), 3)


def test_a_range_that_is_none_is_refused() -> None:
    message = codec("8-bit").encode(torch.tensor([1.0, 2.0]))
    message[:8] = np.array([np.nan, 1], dtype=np.float32).view(np.uint8)
    with pytest.raises(ExchangeError, match="the range of a chunk is none"):
        codec("8-bit").decode(message, 2)


def test_at_least_one_element_is_sent() -> None:
    assert [num_kept(0.01, n) for n in (1, 10, 150, 1000)] == [1, 1, 2, 10]
