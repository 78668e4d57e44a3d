# SPDX-License-Identifier: Apache-2.0
"""Invitations: for so long, for so many machines, and kept by their hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.files.invitations import (
    INVITATIONS_FILE,
    Invitations,
    SpentSecretError,
    WrongSecretError,
)
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_secret_lets_in_so_many_machines(tmp_path: Path) -> None:
    book = Invitations(tmp_path)
    secret, _ = book.make(uses=2)
    assert [book.use(secret.encode()).used for _ in range(2)] == [1, 2]
    with pytest.raises(SpentSecretError, match="let in 2 machines, and is used up"):
        book.use(secret.encode())


def test_a_secret_holds_for_so_long(tmp_path: Path) -> None:
    clock = Clock()
    book = Invitations(tmp_path, clock=clock)
    secret, made = book.make(lasts_s=60)
    clock.now_s += 59
    assert book.use(secret.encode()).state(clock.now_s) == "open"
    clock.now_s += 1
    with pytest.raises(SpentSecretError, match=rf"{made.name}\) expired at 1970-01-01 00:17:40"):
        book.use(secret.encode())


def test_a_withdrawn_secret_lets_nobody_in(tmp_path: Path) -> None:
    book = Invitations(tmp_path)
    secret, made = book.make()
    book.withdraw(made.name)
    with pytest.raises(SpentSecretError, match="was withdrawn"):
        book.use(secret.encode())
    with pytest.raises(UsageError, match=f"no invitation 'other'; the newest are: {made.name}"):
        book.withdraw("other")


@given(st.binary(max_size=40))
def test_a_wrong_secret_is_told_so(secret: bytes) -> None:
    book = Invitations(None)
    book.make()
    with pytest.raises(WrongSecretError, match="no invitation of this run"):
        book.check(secret)


def test_what_was_used_is_known_to_who_is_started_again(tmp_path: Path) -> None:
    secret, _ = Invitations(tmp_path).make(uses=2)
    Invitations(tmp_path).use(secret.encode())
    assert [one.used for one in Invitations(tmp_path).listed()] == [1]
    assert secret not in (tmp_path / INVITATIONS_FILE).read_text()


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    book = Invitations(tmp_path)
    for lasts_s in (0.0, -1.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(UsageError, match="an invitation lasts"):
            book.make(lasts_s=lasts_s)
    with pytest.raises(UsageError, match="1 to 4096 uses, not 0"):
        book.make(uses=0)
    (tmp_path / INVITATIONS_FILE).write_text("{")
    with pytest.raises(UsageError, match="does not hold a run's invitations"):
        Invitations(tmp_path)


def test_so_many_are_remembered(tmp_path: Path) -> None:
    book = Invitations(tmp_path)
    for _ in range(260):
        book.make()
    assert len(book.listed()) == 256
