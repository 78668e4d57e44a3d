# SPDX-License-Identifier: Apache-2.0
"""`gangline.map` and `reduce` on threads: every row once, whatever cuts and combines them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gangline
from cases import quick_of
from gangline.scheduling.schemes.named import SCHEMES
from gangline.spec.errors import FunctionError, UsageError

VALUES = np.arange(300.0).reshape(100, 3)
LAYOUTS = ("CENTRALIZED", "PERGROUP", "PERCPU")
VICTIMS = ("SEQ", "SEQPRI", "RANDOM", "RANDOMPRI")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("layout", quick_of(LAYOUTS, quick=["CENTRALIZED", "PERCPU"]))
def test_every_row_is_done_once_and_comes_to_its_place(scheme: str, layout: str) -> None:
    seen: list[int] = []

    def double(rows: np.ndarray) -> np.ndarray:
        seen.extend(rows[:, 0].astype(int).tolist())
        return rows * 2

    made = gangline.map(double, VALUES, scheme=scheme, layout=layout, workers=3, details=True)
    assert np.array_equal(made.value, VALUES * 2)
    assert sorted(seen) == VALUES[:, 0].astype(int).tolist()
    assert sum(made.rows_of) == 100
    assert made.scheme == scheme


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("pre_partition", [True, False])
def test_chunks_of_a_worker_that_is_held_up_are_stolen(victim: str, pre_partition: bool) -> None:
    """The first chunk is done only when all others are: by the other worker, which steals."""
    left = threading.Semaphore(0)

    def work(rows: range) -> int:
        if 0 in rows:
            for _ in range(39):
                left.acquire()
        else:
            left.release()
        return len(rows)

    made = gangline.reduce(
        work,
        range(40),
        scheme="SS",
        layout="PERCPU",
        victim=victim,
        pre_partition=pre_partition,
        workers=2,
        details=True,
    )
    assert made.value == 40
    assert sorted(made.chunks_of) == [1, 39]
    assert made.stolen >= 19


@given(
    rows=st.integers(0, 80),
    workers=st.integers(1, 9),
    grain=st.integers(1, 30),
    scheme=st.sampled_from(["STATIC", "SS", "GSS", "FAC2", "VISS", "AUTO", "AF"]),
    layout=st.sampled_from(LAYOUTS),
    ordered=st.booleans(),
)
@settings(max_examples=40)
def test_any_loop_is_what_the_function_makes_of_all_rows(
    rows: int, workers: int, grain: int, scheme: str, layout: str, ordered: bool
) -> None:
    values = np.arange(2.0 * rows).reshape(rows, 2)
    options = {"workers": workers, "grain": grain, "scheme": scheme, "layout": layout}
    made = gangline.map(lambda part: part + 1, values, ordered=ordered, **options)
    assert np.array_equal(made, values + 1)
    total = gangline.reduce(lambda part: part.sum(axis=0), values, ordered=ordered, **options)
    assert np.array_equal(total, values.sum(axis=0))
    parts = list(gangline.imap(lambda part: part * 3, values, ordered=ordered, **options))
    starts = [part.start for part in parts]
    assert sum(part.stop - part.start for part in parts) == rows
    assert not ordered or starts == sorted(starts)
    for part in parts:
        assert np.array_equal(part.value, values[part.start : part.stop] * 3)


def test_chunks_have_at_least_a_grain_and_are_views_of_the_rows() -> None:
    sizes: list[int] = []

    def look(rows: np.ndarray) -> int:
        assert np.shares_memory(rows, VALUES)
        sizes.append(len(rows))
        return 0

    gangline.reduce(look, VALUES, scheme="SS", grain=30)
    assert sorted(sizes) == [10, 30, 30, 30]


# --- what is cut, and what is given whole ------------------------------------------------------------


def test_tensors_lists_ranges_and_iterables_are_rows() -> None:
    tensor = torch.from_numpy(VALUES)
    assert torch.equal(gangline.map(lambda rows: rows * 2, tensor, scheme="GSS"), tensor * 2)
    words = ["a", "b", "c", "d", "e"]
    assert gangline.map(lambda some: [one * 2 for one in some], words, scheme="SS") == [
        one * 2 for one in words
    ]
    assert gangline.map(list, range(9), scheme="SS", workers=2) == list(range(9))
    assert gangline.map(tuple, (1, 2, 3), scheme="SS") == (1, 2, 3)
    assert gangline.map(list, (n * n for n in range(5))) == [0, 1, 4, 9, 16]


def test_sparse_rows_stay_sparse() -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    matrix = sparse.random_array((50, 7), density=0.2, rng=np.random.default_rng(0), format="csr")
    made = gangline.map(lambda rows: rows * 2, matrix, scheme="GSS", workers=2)
    assert sparse.issparse(made)
    assert np.array_equal(made.toarray(), matrix.toarray() * 2)
    beside = gangline.map(lambda rows: rows.T.tocsr(), matrix, scheme="SS", combine="columns")
    assert np.array_equal(beside.toarray(), matrix.T.toarray())
    assert gangline.reduce(lambda rows: rows.max(), matrix, combine="max") == matrix.max()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_stay_what_they_are(library: str) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    frame = module.DataFrame({"a": list(range(20)), "b": list(range(20, 40))})
    made = gangline.map(lambda rows: rows[["b"]], frame, scheme="GSS", workers=2)
    assert type(made) is type(frame)
    assert made["b"].to_list() == list(range(20, 40))


def test_other_arguments_are_cut_with_the_rows_or_given_whole() -> None:
    weights, one_row, table = np.arange(100.0), np.ones((1, 3)), {"factor": 2}

    def work(rows, own, every, given, number):
        assert len(own) == len(rows)
        assert every.shape == (1, 3)
        return (rows + every) * own[:, None] * given["factor"] * number

    made = gangline.map(work, VALUES, weights, one_row, table, 3.0, scheme="GSS", workers=2)
    assert np.array_equal(made, (VALUES + 1) * weights[:, None] * 6)


def test_an_argument_with_as_many_rows_can_be_given_whole() -> None:
    square = np.arange(16.0).reshape(4, 4)
    made = gangline.map(lambda rows, whole: rows @ whole, square, square, broadcast=(1,))
    assert np.array_equal(made, square @ square)


def test_an_argument_with_other_rows_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"argument 1 has 3 rows.*broadcast=\(1,\)"):
        gangline.map(lambda a, b: a, VALUES, np.ones(3))
    with pytest.raises(UsageError, match=r"broadcast=\(2,\).*1 to 1"):
        gangline.map(lambda a, b: a, VALUES, VALUES, broadcast=(2,))
    with pytest.raises(UsageError, match="rows is a dict"):
        gangline.map(len, {"a": 1})
    with pytest.raises(UsageError, match="rows is a int"):
        gangline.map(len, 7)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("value", ["a", [1], (1,), {"a": 1}, None])
def test_sums_are_of_numbers_however_few_chunks_there_are(rows: int, value: object) -> None:
    kind = type(value).__name__
    with pytest.raises(
        UsageError, match=rf"row \d the function returned a {kind}: with combine='sum'"
    ):
        gangline.reduce(lambda _: value, range(rows), scheme="SS", workers=1)


def test_complex_numbers_have_a_sum_and_no_least() -> None:
    options = {"scheme": "SS", "workers": 1}
    assert gangline.reduce(lambda _: 1j, range(3), **options) == 3j
    for combine in ("min", "max"):
        with pytest.raises(UsageError, match="complex number: these have no order"):
            gangline.reduce(lambda _: np.complex128(1j), range(3), combine=combine, **options)


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("where", ["threads", "processes"])
def test_an_error_that_cannot_say_what_it_is_has_failed_as_any_other(where: str) -> None:
    def work(rows):
        raise SpeechlessError

    options = {"where": where, "workers": 1, "scheme": "STATIC"}
    said = "SpeechlessError: .*__str__ raises RuntimeError"
    with pytest.raises(FunctionError, match=f"failed for rows 0 to 2 of 3: {said}"):
        gangline.map(work, range(3), **options)
    (failure,) = gangline.map(work, range(3), on_error="collect", **options).failures
    assert "SpeechlessError" in failure.error


def test_no_rows_give_what_the_function_makes_of_none() -> None:
    made = gangline.map(lambda rows: rows @ np.ones((3, 2)), VALUES[:0])
    assert made.shape == (0, 2)
    assert gangline.map(list, []) == []
    assert list(gangline.imap(list, [])) == []


# --- how results are combined ------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_results_are_combined_as_asked(ordered: bool) -> None:
    options = {"scheme": "SS", "grain": 7, "workers": 3, "ordered": ordered}
    beside = gangline.map(lambda rows: rows.T, VALUES, combine="columns", **options)
    assert np.array_equal(beside, VALUES.T)
    for name, numpy in (("sum", np.sum), ("min", np.min), ("max", np.max)):
        made = gangline.map(lambda rows, f=numpy: f(rows, axis=0), VALUES, combine=name, **options)
        assert np.array_equal(made, numpy(VALUES, axis=0))
        tensor = torch.from_numpy(VALUES)
        of_tensor = gangline.reduce(
            lambda rows, f=numpy: torch.from_numpy(f(rows.numpy(), axis=0)),
            tensor,
            combine=name,
            **options,
        )
        assert np.array_equal(of_tensor.numpy(), numpy(VALUES, axis=0))
        numbers = gangline.reduce(lambda rows, f=numpy: float(f(rows)), VALUES, combine=name)
        assert numbers == numpy(VALUES)
    assert gangline.map(len, VALUES, combine="list", scheme="SS", grain=40) == [40, 40, 20]


def test_a_function_of_the_users_combines_two_results() -> None:
    def longer(one: str, other: str) -> str:
        return max(one, other, key=lambda word: (len(word), word))

    words = [f"{n:0{n % 9}d}" for n in range(50)]
    found = gangline.reduce(lambda some: max(some, key=len), words, combine=longer, scheme="SS")
    assert len(found) == 8


def test_the_same_chunks_give_the_same_bits_in_order() -> None:
    values = np.random.default_rng(0).standard_normal(5000) * 10.0 ** np.arange(5000 % 7 + 5000)[
        :5000
    ].clip(0, 12)
    options = {"scheme": "FAC2", "workers": 4, "ordered": True}
    first = gangline.reduce(lambda rows: rows.sum(), values, **options)
    for _ in range(5):
        assert gangline.reduce(lambda rows: rows.sum(), values, **options) == first


@pytest.mark.parametrize(
    ("function", "combine", "said"),
    [
        (lambda rows: 3.0, "rows", r"rows 0 to 9 .* returned a float: with combine='rows'"),
        (lambda rows: rows[:, 0], "columns", r"shape \(10,\).*two dimensions"),
        (
            lambda rows: rows[:, : 1 + (rows[0, 0] > 60)],
            "rows",
            r"shape \(10, 2\), and for rows 0 to 9",
        ),
        (lambda rows: rows if rows[0, 0] else [1], "rows", r"a ndarray of shape .*a list"),
        (lambda rows: rows[: 1 + (rows[0, 0] > 60)], "sum", r"shape \(2, 3\).*arrays of one shape"),
        (lambda rows: "text", "max", r"returned a str.*numbers"),
        (lambda rows: None, "sum", r"returned a NoneType.*numbers"),
    ],
)
def test_results_that_do_not_fit_are_named_with_their_rows(function, combine, said) -> None:
    with pytest.raises(UsageError, match=said):
        gangline.map(function, VALUES, combine=combine, scheme="SS", grain=10, workers=1)


def test_a_combination_that_fails_names_the_rows() -> None:
    with pytest.raises(UsageError, match="combine failed on the result of rows 10 to 19"):
        gangline.reduce(len, VALUES, combine=lambda a, b: a / 0, scheme="SS", grain=10, workers=1)


# --- failures ----------------------------------------------------------------------------------------


def fails_at(*bad: int):
    def work(rows: range) -> list[int]:
        if any(row in rows for row in bad):
            raise ArithmeticError(f"cannot do {rows}")
        return list(rows)

    return work


def test_a_function_that_fails_is_told_with_its_rows() -> None:
    with pytest.raises(FunctionError, match=r"failed for rows 40 to 49 of 100.*cannot do") as told:
        gangline.map(fails_at(45), range(100), scheme="SS", grain=10, workers=2)
    assert isinstance(told.value.__cause__, ArithmeticError)


def test_failures_are_collected_and_the_rest_is_kept() -> None:
    made = gangline.map(
        fails_at(5, 77), range(100), scheme="SS", grain=10, workers=3, on_error="collect"
    )
    assert made.value == [*range(10, 70), *range(80, 100)]
    assert [(one.start, one.stop) for one in made.failures] == [(0, 10), (70, 80)]
    assert made.num_failed == 2
    assert "failed for rows 0 to 9" in repr(made)


def test_collected_failures_are_bounded() -> None:
    made = gangline.map(fails_at(*range(500)), range(500), scheme="SS", on_error="collect")
    assert made.value is None
    assert made.num_failed == 500
    assert len(made.failures) == 100


def test_a_stream_ends_by_the_error_of_a_chunk() -> None:
    parts = gangline.imap(fails_at(45), range(100), scheme="SS", grain=10, workers=1, ordered=True)
    assert [next(parts).start for _ in range(4)] == [0, 10, 20, 30]
    with pytest.raises(FunctionError, match="rows 40 to 49"):
        next(parts)


def test_an_ordered_stream_leaves_out_what_failed() -> None:
    parts = gangline.imap(
        fails_at(0, 45, 99),
        range(100),
        scheme="SS",
        grain=10,
        workers=3,
        ordered=True,
        on_error="collect",
    )
    assert [part.start for part in parts] == [10, 20, 30, 50, 60, 70, 80]


def test_the_workers_of_a_stream_wait_for_a_slow_reader_and_end_with_it() -> None:
    done: list[int] = []
    parts = gangline.imap(lambda rows: done.append(rows[0]), range(10_000), scheme="SS", workers=2)
    next(parts)
    parts.close()
    assert len(done) < 100
    assert not [one for one in threading.enumerate() if one.name.startswith("gangline-map")]


# --- options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scheme": "GSSS"}, "no scheme 'GSSS'.*did you mean 'GSS'"),
        ({"layout": "PERCORE"}, "no queue layout 'PERCORE'"),
        ({"victim": "NEXT"}, "no victim rule 'NEXT'"),
        ({"combine": "median"}, "combine='median' is not known; choose one of rows, columns"),
        ({"where": "gpu"}, "where='gpu' is not known"),
        ({"on_error": "ignore"}, "on_error='ignore' is not known"),
        ({"grain": 0}, "grain=0: give a whole number of at least 1"),
        ({"workers": 2.5}, "workers=2.5: give a whole number"),
        ({"patience_s": 3}, "patience_s=3 is for where='processes'"),
        ({"patience_s": -1, "where": "processes"}, "patience_s=-1"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gangline.map(list, range(5), **options)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(UsageError, match="function is a int; give a function"):
        gangline.map(3, range(5))
    with pytest.raises(UsageError, match="or give a function of two results"):
        gangline.reduce(len, range(5), combine="rows")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no threads")
def test_pinned_workers_have_one_processor_each_and_the_caller_keeps_its_own() -> None:
    before = os.sched_getaffinity(0)
    found = gangline.map(
        lambda rows: [frozenset(os.sched_getaffinity(0))],
        range(8),
        scheme="SS",
        pin=True,
        workers=2,
    )
    assert all(len(one) == 1 and one <= before for one in found)
    assert os.sched_getaffinity(0) == before


def test_progress_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    gangline.map(list, range(50), progress=True)
    assert capsys.readouterr().err == "list: 50 of 50 rows (100 %)\n"


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    seen = threading.Event()

    def wait(rows: range) -> list[int]:
        while "wait" not in screen.getvalue() and not seen.wait(0.01):
            pass
        return list(rows)

    assert gangline.map(wait, range(8), progress=True, workers=2, scheme="SS") == list(range(8))
    assert "/8" in screen.getvalue()


def test_no_torch_is_needed() -> None:
    script = "import sys, gangline; gangline.map(list, range(9)); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_a_map_may_be_made_inside_of_another() -> None:
    def outer(rows: range) -> list[int]:
        return gangline.map(lambda some: [one + 1 for one in some], list(rows), workers=2)

    assert gangline.map(outer, range(20), workers=2, scheme="GSS") == list(range(1, 21))


# --- schemes that are picked -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["expert", "sarsa"])
def test_a_scheme_is_picked_by_how_earlier_loops_of_the_function_went(method: str) -> None:
    def double(rows: np.ndarray) -> np.ndarray:
        return rows * 2

    loops = [gangline.map(double, VALUES, scheme=method, workers=2, details=True) for _ in range(4)]
    assert all(np.array_equal(one.value, VALUES * 2) for one in loops)
    assert "nothing is measured yet" in loops[0].decisions[0]
    assert all(one.decisions for one in loops[1:])
    assert not any("nothing is measured" in why for one in loops[1:] for why in one.decisions)
    other = gangline.map(lambda rows: rows, VALUES, scheme=method, workers=2, details=True)
    assert "nothing is measured yet" in other.decisions[0]


def test_a_scheme_of_ones_own_is_found_by_its_name() -> None:
    made = gangline.map(len, range(23), scheme="map_functions:Fives", combine="list", workers=2)
    assert made == [5, 5, 5, 5, 3]


def test_without_a_scheme_one_is_picked_unless_something_else_is_given() -> None:
    assert gangline.map(list, range(9), workers=2, details=True).decisions
    for options in ({"grain": 2}, {"layout": "PERCPU"}, {"victim": "SEQ"}):
        made = gangline.map(list, range(9), workers=2, details=True, **options)
        assert (made.scheme, made.decisions) == ("FAC2", ())


def test_who_picks_by_itself_is_not_told_what_to_pick() -> None:
    with pytest.raises(UsageError, match="picks scheme, layout, victim and grain by itself"):
        gangline.map(list, range(5), scheme="expert", layout="PERCPU")


def test_a_loop_that_fails_teaches_nothing() -> None:
    def fail(rows: range) -> list[int]:
        raise ArithmeticError

    for _ in range(2):
        with pytest.raises(FunctionError):
            gangline.map(fail, range(5), scheme="expert")
