# SPDX-License-Identifier: Apache-2.0
"""Results of pandas: nothing is aligned with NaN in silence."""

from __future__ import annotations

import pytest

import gangline
from gangline.spec.errors import UsageError

pd = pytest.importorskip("pandas", reason="pandas is not installed")

FRAME = pd.DataFrame({"k": list("aabbccdd"), "v": range(8)})
CHUNKED = {"scheme": "SS", "grain": 4, "workers": 2}


@pytest.mark.parametrize("combine", ["sum", "min", "max"])
@pytest.mark.parametrize("ordered", [True, False])
def test_groups_that_differ_by_chunk_are_refused_and_the_advice_works(
    combine: str, ordered: bool
) -> None:
    def grouped(rows):
        return getattr(rows.groupby("k").v, combine)()

    options = {**CHUNKED, "ordered": ordered}
    with pytest.raises(UsageError, match=r"'[ac]' is in its index.*groupby\(level=0\)"):
        gangline.reduce(grouped, FRAME, combine=combine, **options)
    with pytest.raises(UsageError, match=r"is (not )?in its index"):
        gangline.reduce(grouped, FRAME, combine=combine, **{**options, "grain": 3})

    def advised(a, b):
        return getattr(pd.concat([a, b]).groupby(level=0), combine)()

    made = gangline.reduce(grouped, FRAME, combine=advised, **options)
    pd.testing.assert_series_equal(made, grouped(FRAME))


@pytest.mark.parametrize("combine", ["sum", "min", "max"])
def test_the_same_labels_in_another_order_find_each_other(combine: str) -> None:
    def work(rows):
        frame = pd.DataFrame({"x": [1, 2], "y": [3, 4]}, index=["p", "q"])
        return frame if 0 in rows else frame.loc[["q", "p"], ["y", "x"]] * 10

    made = gangline.reduce(work, range(8), combine=combine, ordered=True, **CHUNKED)
    factor = {"sum": 11, "min": 1, "max": 10}[combine]
    assert made.loc["p", "x"] == factor
    assert made.loc["q"].to_dict() == {"x": 2 * factor, "y": 4 * factor}


def test_labels_that_occur_twice_must_be_the_same() -> None:
    def work(rows):
        return pd.Series([1, 2, 3], index=list("aab") if 0 in rows else list("abb"))

    with pytest.raises(UsageError, match="labels occur more than once"):
        gangline.reduce(work, range(8), **CHUNKED)
    made = gangline.reduce(lambda rows: pd.Series([1, 2], index=["a", "a"]), range(8), **CHUNKED)
    assert made.to_list() == [2, 4]


def test_other_columns_are_refused_below_each_other() -> None:
    def work(rows):
        return rows.rename(columns={"v": f"v{rows.v.iloc[0]}"})

    with pytest.raises(UsageError, match=r"rows 4 to 7 .*'v4' is in its columns.*set_axis"):
        gangline.map(work, FRAME, **CHUNKED)
    made = gangline.map(lambda d: d[["v", "k"] if d.v.iloc[0] else ["k", "v"]], FRAME, **CHUNKED)
    pd.testing.assert_frame_equal(made, FRAME)


def test_other_rows_are_refused_beside_each_other() -> None:
    with pytest.raises(UsageError, match=r"rows 4 to 7 .*4 is in its index.*reset_index"):
        gangline.map(lambda d: d, FRAME, combine="columns", **CHUNKED)
    made = gangline.map(lambda d: d.reset_index(drop=True), FRAME, combine="columns", **CHUNKED)
    assert made.shape == (4, 4)
    pd.testing.assert_frame_equal(
        gangline.map(lambda d: d.T, FRAME, combine="columns", **CHUNKED), FRAME.T
    )
