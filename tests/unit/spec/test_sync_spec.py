# SPDX-License-Identifier: Apache-2.0
"""What `--sync` takes: every form is read, shown as it was written, or refused with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.spec.errors import UsageError
from gangline.spec.sync import AVERAGE, IN_STEP, NESTEROV, Sync, parse_sync

FORMS = {
    "full": Sync(),
    "none": Sync(kind="none"),
    "flexible": Sync(kind="flexible"),
    "auto": Sync(kind="auto"),
    "percentage(0.25)": Sync(kind="percentage", rate=0.25),
    "local(16)": Sync(kind="local", steps=16),
    "local(16, strict)": Sync(kind="local", steps=16, is_strict=True),
    "local(16, nesterov, strict)": Sync(kind="local", steps=16, outer=NESTEROV, is_strict=True),
    "local(16, nesterov)": Sync(kind="local", steps=16, outer=NESTEROV),
    "full/flexible": Sync(kind="flexible", levels=2),
    "full/full/local(4)": Sync(kind="local", steps=4, levels=3),
    "percentage(0.5)/flexible": Sync(kind="flexible", within=(Sync(kind="percentage", rate=0.5),)),
    "full/flexible/percentage(0.1)/none": Sync(
        kind="none",
        levels=2,
        within=(Sync(kind="flexible"), Sync(kind="percentage", rate=0.1)),
    ),
}


@pytest.mark.parametrize(("text", "expected"), FORMS.items())
def test_every_form_is_read_and_shown_as_it_was_written(text: str, expected: Sync) -> None:
    assert parse_sync(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("percentage( 0.5 )", "percentage(0.5)"),
        (" local(2,nesterov) ", "local(2, nesterov)"),
        ("local(2, average)", "local(2)"),
        ("local(2, average, strict)", "local(2, strict)"),
        ("full / none", "full/none"),
        ("percentage(1)", "full"),
    ],
)
def test_other_ways_to_write_the_same(text: str, shown: str) -> None:
    assert str(parse_sync(text)) == shown


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        Sync,
        kind=st.just("percentage"),
        rate=st.floats(1e-6, 0.999),
        levels=st.integers(1, 4),
    )
    | st.builds(
        Sync,
        kind=st.just("local"),
        steps=st.integers(1, 10**6),
        outer=st.sampled_from([AVERAGE, NESTEROV]),
        is_strict=st.booleans(),
        levels=st.integers(1, 4),
    )
    | st.builds(Sync, kind=st.sampled_from(["full", "none", "flexible", "auto"]))
)
def test_what_is_shown_can_be_read(sync: Sync) -> None:
    assert parse_sync(str(sync)) == sync


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sometimes", "sync 'sometimes' is not known"),
        ("", "sync '' cannot be read"),
        ("percentage", "sync 'percentage' cannot be read"),
        ("percentage()", "sync 'percentage()'"),
        ("percentage(a)", "could not convert string to float"),
        ("percentage(0)", "percentage(0): the rate is a part of the steps, above 0"),
        ("percentage(1.5)", "percentage(1.5): the rate is a part of the steps"),
        ("percentage(nan)", "percentage(nan): the rate is a part of the steps"),
        ("percentage(0.1, 0.2)", "sync 'percentage(0.1, 0.2)' cannot be read"),
        ("local", "sync 'local' cannot be read"),
        ("local(0)", "local(0): a number of steps is at least 1"),
        ("local(1.5)", "invalid literal for int()"),
        ("local(4, adam)", "the outer optimizer 'adam' is not known; choose one of: average"),
        ("local(4, strict, nesterov)", "sync 'local(4, strict, nesterov)' cannot be read"),
        (
            "local(4, adam, strict)",
            "the outer optimizer 'adam' is not known; choose one of: average",
        ),
        ("none(3)", "sync 'none(3)' cannot be read"),
        ("none/full", "what is full is below what is relaxed"),
        ("none/full/flexible", "the levels that are full come first"),
        ("local(4)/local(64)", "each is none, percentage, flexible, not local"),
        ("none/auto", "each is none, percentage, flexible, not auto"),
        ("full)", "sync 'full)' cannot be read"),
    ],
)
def test_what_means_nothing_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sync(text)
    assert reason in str(caught.value)
    assert "write for example full, none, percentage(0.25)" in str(caught.value)


def test_at_least_the_lowest_level_is_synchronous() -> None:
    with pytest.raises(UsageError, match="at least the lowest level is synchronous, not 0 levels"):
        Sync(levels=0)


def test_only_full_holds_all_workers_together_in_every_step() -> None:
    assert not IN_STEP.is_relaxed
    assert not parse_sync("full/full").is_relaxed
    relaxed = ["none", "percentage(0.5)", "local(3)", "flexible", "full/flexible"]
    assert all(parse_sync(text).is_relaxed for text in relaxed)
