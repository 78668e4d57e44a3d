# SPDX-License-Identifier: Apache-2.0
"""What a batch counts is known when all members have told theirs."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from gangline.spec.errors import ExchangeError
from gangline.worker.samples.weights import PartOf, whole_of


def test_a_part_is_known_with_the_whole() -> None:
    whole: Future[float] = Future()
    part = PartOf(3.0, whole)
    assert not part.done()
    whole.set_result(12.0)
    assert part.result() == 0.25
    assert whole_of(part) == 12.0


def test_where_nothing_counts_a_part_is_0() -> None:
    whole: Future[float] = Future()
    whole.set_result(0.0)
    assert PartOf(0.0, whole).result() == 0.0


def test_without_weights_there_is_no_whole() -> None:
    assert whole_of(0.5) is None


def test_a_whole_that_could_not_be_had_is_0() -> None:
    whole: Future[float] = Future()
    part = PartOf(1.0, whole)
    whole.set_exception(ExchangeError("a member is gone"))
    assert whole_of(part) == 0.0
    with pytest.raises(ExchangeError, match="a member is gone"):
        part.result()
