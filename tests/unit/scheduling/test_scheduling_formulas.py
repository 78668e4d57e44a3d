# SPDX-License-Identifier: Apache-2.0
"""The sizes of chunks, against sequences that were worked out by hand or by another program."""

from __future__ import annotations

from itertools import groupby

import pytest

from gangline.scheduling import Loop, Partitioner, Timing, parse_scheme


def cut(text: str, total: int, workers: int, *, grain: int = 1, timing: Timing | None = None):
    """All sizes, as one worker after the other asks and nobody reports anything."""
    scheme = parse_scheme(text).make(total, workers, grain=grain, timing=timing)
    partitioner, sizes = Partitioner(total, scheme), []
    while (chunk := partitioner.take(len(sizes) % workers)) is not None:
        sizes.append(chunk.size)
    return sizes


def runs(sizes: list[int]) -> list[tuple[int, int]]:
    return [(size, len(list(same))) for size, same in groupby(sizes)]


GSS = [250, 188, 141, 106, 79, 59, 45, 33, 25, 19, 14, 11, 8, 6, 4, 3, 3, 2, 1, 1, 1, 1]
PLS = [125] * 5 + [94, 71, 53, 40, 30, 22, 17, 12, 9, 7, 5, 4, 3, 2, 2, 1, 1, 1, 1]
FAC2 = [125] * 4 + [63] * 4 + [32] * 4 + [16] * 4 + [8] * 4 + [4] * 4 + [2] * 4
WHOLE = {
    "STATIC": [250] * 4,
    "SS": [1] * 1000,
    "GSS": GSS,
    "TSS": [125, 117, 109, 101, 92, 84, 76, 68, 59, 51, 43, 35, 26, 14],
    "FAC2": FAC2,
    "WF2": FAC2,
    "TFSS": [113] * 4 + [80] * 4 + [47] * 4 + [14, 14, 12],
    "FISS": [27] * 4 + [30] * 4 + [33] * 4 + [35] * 4 + [38] * 4 + [41] * 4 + [43] * 4 + [12],
    "VISS": [27] * 4 + [41] * 4 + [48] * 4 + [52] * 4 + [53] * 4 + [54, 54, 8],
    "PLS": PLS,
    "MFSC": [31] * 32 + [8],
    "MSTATIC": [63] * 15 + [55],
    "AUTO": [7] * 142 + [6],
    "daphne:STATIC": [250] * 4,
    "daphne:SS": [1] * 1000,
    "daphne:GSS": GSS,
    "daphne:TSS": [125, 117, 109, 101, 93, 85, 77, 69, 61, 53, 45, 37, 28],
    "daphne:FAC2": FAC2,
    "daphne:FISS": [28, 40, 52, 64, 76, 88, 100, 112, 124, 136, 148, 32],
    "daphne:VISS": [1] * 4 + [28] * 4 + [56] * 15 + [44],
    "daphne:PLS": PLS,
    "daphne:MFSC": [32] * 31 + [8],
    "daphne:MSTATIC": [63] * 15 + [55],
    "daphne:AUTO": [63] * 15 + [55],
}
BEGIN = {
    "PSS": (32, [167, 139, 116, 97, 81, 67, 56, 47, 39, 32, 27, 22, 19, 16]),
    "daphne:PSS": (32, [167, 139, 116, 97, 81, 67, 56, 47, 39, 32, 27, 22, 19, 16]),
    "daphne:TFSS": (41, [125, 110, 96, 84, 74, 64, 56, 49, 43, 38, 33]),
}


@pytest.mark.parametrize("text", WHOLE)
def test_a_thousand_items_of_four_workers_are_cut_as_published(text):
    assert cut(text, 1000, 4) == WHOLE[text]


@pytest.mark.parametrize("text", BEGIN)
def test_a_thousand_items_begin_as_published(text):
    count, first = BEGIN[text]
    sizes = cut(text, 1000, 4)
    assert len(sizes) == count
    assert sizes[: len(first)] == first


def test_static_gives_each_worker_one_chunk_where_daphne_has_one_more():
    assert runs(cut("STATIC", 1003, 8)) == [(126, 7), (121, 1)]
    assert runs(cut("daphne:STATIC", 1003, 8)) == [(125, 8), (3, 1)]


def test_the_static_part_of_pls_is_asked_for():
    assert cut("PLS(swr=0.8)", 1000, 4)[:5] == [200, 200, 200, 200, 50]


def test_no_chunk_but_the_last_is_below_the_grain():
    assert cut("GSS", 1000, 4, grain=100) == [250, 188, 141, 106, 100, 100, 100, 15]
    assert cut("SS", 25, 4, grain=10) == [10, 10, 5]
    assert cut("SS", 5, 4, grain=10) == [5]


KNOWN = Timing(mean_s=1.0, sigma_s=1.0, overhead_s=1.0)


@pytest.mark.parametrize(
    ("text", "timing", "first"),
    [
        ("FSC", Timing(mean_s=1.0, sigma_s=0.01, overhead_s=0.001), [10, 10, 10]),
        ("FSC(mean=1,sigma=0.01,overhead=0.001)", None, [10, 10, 10]),
        ("FAC", KNOWN, [229, 229, 229, 229, 9, 9, 9, 9]),
        ("TAP(alpha=1.3)", KNOWN, [222]),
        ("BOLD", KNOWN, [201]),
    ],
)
def test_schemes_go_by_the_timing_that_is_known(text, timing, first):
    assert cut(text, 1000, 4, timing=timing)[: len(first)] == first


STEADY = Timing(mean_s=1.0, sigma_s=0.0, overhead_s=0.1)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("FSC", [250] * 4), ("FAC", [250] * 4), ("TAP", GSS), ("BOLD", None)],
)
def test_items_that_are_all_alike_need_no_small_chunks(text, sizes):
    found = cut(text, 1000, 4, timing=STEADY)
    assert found == sizes if sizes is not None else found[0] == 250


@pytest.mark.parametrize("text", ["FSC", "FAC", "TAP", "BOLD"])
def test_one_worker_can_go_by_a_timing(text):
    assert sum(cut(text, 1000, 1, timing=KNOWN)) == 1000


def test_bold_takes_single_items_where_chunks_cost_nothing():
    timing = Timing(mean_s=1.0, sigma_s=1.0)
    assert set(cut("BOLD", 50, 4, timing=timing)) == {1}


def test_bold_takes_its_whole_part_where_chunks_cost_more_than_all_items():
    timing = Timing(mean_s=1.0, sigma_s=1.0, overhead_s=1e6)
    assert cut("BOLD", 1000, 4, timing=timing)[0] == 250


def test_bold_takes_less_when_time_has_passed_for_what_is_under_way():
    def fifth_chunk(took_s: float) -> int:
        scheme, left = parse_scheme("BOLD(mean=1,sigma=0.1,overhead=1)").make(1000, 4), 1000
        for worker in range(4):
            scheme.next_size(worker, left)
        scheme.finished(0, 100, took_s)
        return scheme.next_size(0, 500)

    assert fifth_chunk(1.0) > fifth_chunk(200.0) > 100


def test_a_timing_that_is_not_known_is_learnt_after_one_batch():
    scheme = parse_scheme("FAC").make(1000, 4)
    sizes, left = [], 1000
    for number in range(8):
        size = scheme.next_size(number % 4, left)
        scheme.finished(number % 4, size, size * 1.0)
        sizes.append(size)
        left -= size
    assert sizes[:4] == [125] * 4
    assert sizes[4:] == [63] * 4, "σ = 0, so that x = 2: half of the 500 in four chunks"


def test_weights_are_a_proportion():
    scheme = parse_scheme("WF2").make(1000, 4, weights=[8, 4, 2, 2])
    assert [scheme.next_size(worker, 1000) for worker in range(4)] == [250, 125, 63, 63]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Loop.of(-1, 4), "items = -1"),
        (lambda: Loop.of(1, 0), "workers = 0"),
        (lambda: Loop.of(1, 1, grain=0), "grain = 0"),
        (lambda: Loop.of(1, 2, weights=[1]), "1 weights for 2 workers"),
        (lambda: Loop.of(1, 2, weights=[1, 0]), "above 0"),
        (lambda: Timing(mean_s=0.0), "the mean must be above 0"),
    ],
)
def test_what_cannot_be_is_refused(made, said):
    with pytest.raises(ValueError, match=said):
        made()
