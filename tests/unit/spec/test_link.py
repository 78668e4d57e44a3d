# SPDX-License-Identifier: Apache-2.0
"""Links to a job: what is printed is what is read, and what is not whole is refused."""

from __future__ import annotations

import contextlib
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.spec.errors import UsageError
from gangline.spec.machines.link import FINGERPRINT_CHARS, JoinLink, is_loopback, is_wildcard

WORDS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
FINGERPRINT = "f" * FINGERPRINT_CHARS
HOSTS = st.one_of(
    st.ip_addresses().map(str),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{2,5})?", fullmatch=True),
)
LINKS = st.builds(
    JoinLink,
    host=HOSTS,
    port=st.integers(1, 65535),
    run=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
    fingerprint=st.text(WORDS, min_size=FINGERPRINT_CHARS, max_size=FINGERPRINT_CHARS),
    secret=st.text(WORDS, max_size=30),
)


@given(LINKS)
def test_what_is_printed_is_what_is_read(link: JoinLink) -> None:
    assert JoinLink.parse(link.text) == link
    assert shlex.split(link.command) == ["gangline", "join", link.text]
    assert "\n" not in link.command


@given(st.text(max_size=60))
def test_whatever_is_pasted_is_read_or_refused(text: str) -> None:
    for pasted in (text, f"gl://{text}"):
        with contextlib.suppress(UsageError):
            JoinLink.parse(pasted)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://a:1/r", "begin with gl://"),
        ("gl://a/r#x", "is not HOST:PORT"),
        ("gl://a:70000/r", "is not HOST:PORT"),
        ("gl://a b:1/r", "no name or address"),
        ("gl://[::g]:1/r", "no name or address"),
        ("gl://a:1", "does not name the run"),
        (f"gl://a:1/r#{FINGERPRINT[:-1]}.s", "a fingerprint has 27"),
        (f"gl://a:1/r#{FINGERPRINT}.s s", "a secret is"),
        ("gl://a:1/r", "it has no fingerprint"),
        ("gl://10.0.0.5:1/r#.secret", "it has no fingerprint"),
    ],
)
def test_a_link_that_is_not_whole_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        JoinLink.parse(text)


def test_a_link_says_how_the_coordinator_is_reached() -> None:
    far = JoinLink.parse(f"gl://[fd00::5]:7700/r#{FINGERPRINT}.s")
    assert (far.url, far.secret) == ("wss://[fd00::5]:7700", "s")
    assert far.command.startswith("gangline join 'gl://[fd00::5]:7700/")
    near = JoinLink.parse("gl://127.0.0.1:7700/r#.s")
    assert (near.url, near.secret) == ("ws://127.0.0.1:7700", "s")


def test_loopback_and_all_interfaces_are_told_apart() -> None:
    assert [is_loopback(one) for one in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "desk")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert [is_wildcard(one) for one in ("0.0.0.0", "::", "127.0.0.1", "desk")] == [
        True, True, False, False,
    ]  # fmt: skip
