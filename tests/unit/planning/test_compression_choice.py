# SPDX-License-Identifier: Apache-2.0
"""How a compression is named, where in a structure it belongs, and when it pays."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec
import pytest

from gangline.collectives.hierarchy.seats import seats_of
from gangline.launch.compression import compressed
from gangline.planning.compression import CANDIDATES, CODEC_COSTS, choose, exchange_s
from gangline.planning.cost.model import LinkCost
from gangline.spec.config import ExchangeConfig, RunConfig
from gangline.spec.errors import UsageError
from gangline.spec.exchange.compression import KINDS, Compression, shown_kinds
from gangline.spec.exchange.compression_format import is_shorter, message_bytes, sent_bytes
from gangline.spec.exchange.structure import Structure, fit, structure_of
from tree_members import ring, server

PAGE = Path(__file__).parents[3] / "docs" / "compression.md"
EIGHT_BIT = Compression.parse("8-bit")


# --- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", Compression()),
        (" 8-bit ", Compression("8-bit")),
        ("top-k", Compression("top-k", 0.01)),
        ("top-k(0.001)", Compression("top-k", 0.001)),
        ("powersgd(2)", Compression("powersgd", 2)),
    ],
)
def test_a_compression_is_chosen_by_name(text: str, expected: Compression) -> None:
    assert Compression.parse(text) == expected
    assert Compression.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zip", r"compression 'zip' is not known; choose one of: none, .*powersgd\(4\)"),
        ("top-k(0.01", r"'top-k\(0.01' names no compression; write one of: none"),
        ("", "'' names no compression"),
        ("8-bit(4)", "8-bit takes no parameter, not 4; write 8-bit"),
        ("top-k(half)", r"'half' is not a number; write for example top-k\(0.01\)"),
        ("top-k()", "'' is not a number"),
        ("top-k(0.9)", r"needs the fraction of the elements, 0.000001 to 0.5, not 0.9"),
        ("top-k(nan)", "needs the fraction of the elements, 0.000001 to 0.5, not nan"),
        ("powersgd(0)", r"needs the rank, a whole number from 1 to 32, not 0"),
        ("powersgd(2.5)", r"not 2.5; write for example powersgd\(4\)"),
        ("powersgd(inf)", "a whole number from 1 to 32, not inf"),
    ],
)
def test_what_names_no_compression_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Compression.parse(text)


def test_a_parameter_that_is_missing_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"top-k needs the fraction .*, not None; write .*0.01"):
        Compression("top-k")


@pytest.mark.parametrize("shown", shown_kinds())
def test_the_page_on_compression_names_every_kind(shown: str) -> None:
    kind = Compression.parse(shown).kind
    assert f"| `{kind}" in PAGE.read_text()


# --- structures --------------------------------------------------------------------------------------

TREE = ring(ring(0, 1), ring(ring(2, 3), ring(4)))


def test_a_group_of_a_structure_is_compressed_by_its_name() -> None:
    top = TREE.compressed("top", EIGHT_BIT)
    assert str(top) == "ring[8-bit](ring(0*, 1), ring(ring(2*, 3), ring(4*)))"
    low = TREE.compressed("top.1.0", Compression.parse("top-k"))
    assert str(low) == "ring(ring(0*, 1), ring(ring[top-k(0.01)](2*, 3), ring(4*)))"
    assert [seat.compression for seat in seats_of(low, 2)] == ["top-k(0.01)", "none", "none"]
    assert msgspec.json.decode(msgspec.json.encode(low), type=Structure) == low


def test_the_top_is_where_groups_exchange() -> None:
    alone = ring(ring(ring(0, 1), ring(2, 3))).compressed("top", EIGHT_BIT)
    assert str(alone) == "ring(ring[8-bit](ring(0*, 1), ring(2*, 3)))"
    assert [seat.compression for seat in seats_of(alone, 0)] == ["none", "8-bit"]


@pytest.mark.parametrize("name", ["bottom", "top.2", "top.-1", "top.0.0", "top.x", ""])
def test_a_group_that_is_not_there_cannot_be_compressed(name: str) -> None:
    with pytest.raises(UsageError, match=r"no group .* write top, or top\.0\.1 for the second"):
        TREE.compressed(name, EIGHT_BIT)


def test_a_parameter_server_cannot_be_compressed() -> None:
    with pytest.raises(UsageError, match="8-bit needs a ring: a parameter-server sends everything"):
        server(0, 1).compressed("top", EIGHT_BIT)
    with pytest.raises(UsageError, match="'gzip' is not known"):
        Structure(topology="ring", leader=0, members=(0, 1), compression="gzip")


def test_a_compressed_ring_is_no_flat_one() -> None:
    flat = Structure.flat([0, 1, 2])
    assert structure_of(flat, [0, 1, 2]) is None
    assert structure_of(flat.compressed("top", EIGHT_BIT), [0, 1, 2]) is not None


def test_compression_stays_when_members_change() -> None:
    tree = ring(ring(0, 1), ring(2, 3)).compressed("top", EIGHT_BIT)
    assert tree.relabelled(lambda one: one + 10).compression == "8-bit"
    assert str(fit(tree, [1, 2, 3, 9])) == "ring[8-bit](ring(1*, 9), ring(2*, 3))"
    assert str(fit(tree, [1, 2])) == "ring[8-bit](1*, 2)"
    assert str(fit(tree, [0, 1])) == "ring(0*, 1)"  # the link that was compressed is not used
    assert str(fit(tree, [7, 8])) == "ring[8-bit](7*, 8)"


# --- the flag ----------------------------------------------------------------------------------------

flag = functools.partial(compressed, None, workers=3)


def test_the_flag_compresses_the_groups_that_it_names() -> None:
    assert flag([]) is None
    assert str(flag(["top=powersgd(4)"])) == "ring[powersgd(4)](0*, 1, 2)"
    both = compressed(TREE, ["top=8-bit", "top.0=bf16"], workers=5)
    assert str(both) == "ring[8-bit](ring[bf16](0*, 1), ring(ring(2*, 3), ring(4*)))"


def test_a_flag_that_says_too_little_is_refused() -> None:
    with pytest.raises(UsageError, match=r"compress 8-bit names no group .*top=powersgd\(4\)"):
        ExchangeConfig(compress=("8-bit",))
    planned = RunConfig(exchange=ExchangeConfig(compress=("top=8-bit",)))
    with pytest.raises(UsageError, match=r"is planned while the job runs; give .*structure, too"):
        planned.check()
    RunConfig().check()


# --- when it pays ------------------------------------------------------------------------------------

ELEMENTS = 1_000_000
SLOW = LinkCost(latency_s=0.02, s_per_byte=8 / 10e6)
FAST = LinkCost(latency_s=5e-5, s_per_byte=8 / 100e9)


@pytest.mark.parametrize(
    ("name", "per_element"),
    [
        *(("none", 4.0), ("bf16", 2.0), ("fp16", 2.0), ("8-bit", 1.0039), ("1-bit", 0.1289)),
        *(("terngrad", 0.252), ("top-k(0.01)", 0.08), ("sparse-binary(0.01)", 0.0101)),
        ("powersgd(4)", 0.032),
    ],
)
def test_the_bytes_per_element_are_those_of_the_page(name: str, per_element: float) -> None:
    size = message_bytes(Compression.parse(name), ELEMENTS)
    assert size / ELEMENTS == pytest.approx(per_element, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [2, 5, 50])
def test_nothing_is_ever_made_longer(kind: str, members: int) -> None:
    compression = Compression.parse(kind)
    for elements in (0, 1, 2, 100, ELEMENTS):
        sent = sent_bytes(compression, elements, num_members=members)
        dense = sent_bytes(Compression(), elements, num_members=members)
        assert sent <= dense
        assert is_shorter(compression, elements, num_members=members) == (sent < dense)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exchange_takes_longer_the_more_is_sent(kind: str) -> None:
    seconds = functools.partial(exchange_s, Compression.parse(kind))
    assert seconds(num_elements=ELEMENTS, num_members=1, link=SLOW) == 0
    for members in (2, 3, 8):
        less = seconds(num_elements=ELEMENTS // 2, num_members=members, link=SLOW)
        slow = seconds(num_elements=ELEMENTS, num_members=members, link=SLOW)
        fast = seconds(num_elements=ELEMENTS, num_members=members, link=FAST)
        assert less < slow
        assert fast < slow


def test_a_slow_link_is_compressed_and_a_fast_one_is_not() -> None:
    slow = choose(ELEMENTS, num_members=2, link=SLOW)
    assert not slow.compression.is_none
    assert slow.exchange_s < 0.1 * slow.dense_s
    fast = choose(ELEMENTS, num_members=2, link=FAST)
    assert fast.compression.is_none
    assert fast.exchange_s == fast.dense_s


def test_what_leaves_out_more_must_be_worth_it() -> None:
    narrow = LinkCost(latency_s=0.0, s_per_byte=1e-6)
    among = [Compression(), Compression.parse("bf16"), Compression.parse("fp16")]
    assert choose(ELEMENTS, num_members=2, link=narrow, candidates=among).compression.kind == "bf16"


def test_messages_that_everybody_gets_do_not_pay_among_many() -> None:
    top_k = [Compression(), Compression.parse("top-k(0.1)")]
    assert not choose(ELEMENTS, num_members=2, link=SLOW, candidates=top_k).compression.is_none
    assert choose(ELEMENTS, num_members=20, link=SLOW, candidates=top_k).compression.is_none


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_is_never_compressed(kind: str) -> None:
    compression = Compression.parse(kind)
    among = [Compression(), compression]
    assert choose(ELEMENTS, num_members=1, link=SLOW, candidates=among).compression.is_none
    for elements in (1, 100, ELEMENTS):
        assert not is_shorter(compression, elements, num_members=1)


@pytest.mark.parametrize("bits_per_s", [1e6, 1e8, 1e9, 1e10, 1e11])
@pytest.mark.parametrize("latency_s", [1e-5, 1e-3, 0.05])
def test_what_is_chosen_is_never_slower_than_sending_everything(
    bits_per_s: float, latency_s: float
) -> None:
    link = LinkCost(latency_s=latency_s, s_per_byte=8 / bits_per_s)
    for members in (2, 3, 4, 8, 50):
        for elements in (10, 1000, ELEMENTS, 100 * ELEMENTS):
            found = choose(elements, num_members=members, link=link)
            dense_s = exchange_s(
                Compression(), num_elements=elements, num_members=members, link=link
            )
            assert found.dense_s == dense_s
            assert found.compression.is_none or found.exchange_s < 0.9 * dense_s


def test_every_kind_has_a_cost() -> None:
    assert set(CODEC_COSTS) == set(KINDS)
    assert {one.kind for one in CANDIDATES} <= set(KINDS)
