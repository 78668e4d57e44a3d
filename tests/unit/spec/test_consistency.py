# SPDX-License-Identifier: Apache-2.0
"""Modes are read and written, and what means nothing is refused with what to do."""

from __future__ import annotations

import pytest

from gangline.spec.consistency import Consistency, parse_consistency
from gangline.spec.errors import UsageError


@pytest.mark.parametrize("text", ["bsp", "asp", "ssp(0)", "ssp(16)", "backup(0)", "backup(2)"])
def test_a_mode_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_consistency(text)) == text


def test_space_is_no_matter() -> None:
    assert parse_consistency("  ssp ( 3 ) ") == Consistency(kind="ssp", staleness=3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not known"),
        ("sbp", "not known"),
        ("BSP", "not known"),
        ("ssp", "takes one whole number"),
        ("ssp(a)", "takes one whole number"),
        ("ssp(1.5)", "takes one whole number"),
        ("ssp(٣)", "takes one whole number"),
        ("ssp(1)(2)", "not known"),
        ("ssp(-1)", "staleness of 0"),
        ("backup(-2)", "0 \\(as bsp\\) or more"),
        ("asp(2)", "takes no number"),
        ("bsp()", "takes no number"),
    ],
)
def test_what_means_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_consistency(text)


def test_a_number_of_another_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="bsp takes no number"):
        Consistency(kind="bsp", staleness=2)


@pytest.mark.parametrize(("backups", "workers"), [(1, 1), (4, 4), (9, 4)])
def test_somebody_must_be_waited_for(backups: int, workers: int) -> None:
    with pytest.raises(UsageError, match=f"at most {workers - 1} can be spared"):
        Consistency(kind="backup", backups=backups).check(workers)


def test_somebody_must_be_there() -> None:
    with pytest.raises(UsageError, match="at least one worker"):
        parse_consistency("asp").check(0)
