# SPDX-License-Identifier: Apache-2.0
"""When parameters are pulled: what may be said, and with what."""

from __future__ import annotations

import pytest

from gangline.spec.errors import UsageError
from gangline.spec.serving import AT_STEP, IN_FORWARD, parse_service


def test_it_is_said_in_the_brackets_and_shown_again() -> None:
    assert parse_service("bsp").pull == AT_STEP
    service = parse_service("ssp(2, servers=2, pull=forward)")
    assert service.pull == IN_FORWARD
    assert parse_service(str(service)) == service


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("asp(pull=later)", "give step or forward"),
        ("asp(ahead=1, pull=forward)", "without ahead=1"),
        ("asp(update=worker, pull=forward)", "update=server"),
        ("asp(rows=ondemand, pull=forward)", "exclude each other.*leave out one"),
    ],
)
def test_what_it_cannot_go_with_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_service(text)
