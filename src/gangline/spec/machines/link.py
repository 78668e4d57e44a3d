# SPDX-License-Identifier: Apache-2.0
"""The link by which other machines join a job, in one line that can be pasted.

    gl://192.168.1.5:7700/digits#FINGERPRINT.SECRET

The fingerprint says which certificate answers there; it is missing where the job does without TLS,
which is on this machine only. The secret lets workers in, for a short time; it may be left out, and
given by another way.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import quote, unquote

import msgspec

from gangline.spec.errors import UsageError

SCHEME = "gl://"
FINGERPRINT_CHARS = 27
"""160 bits."""
_TEXT = re.compile(r"[A-Za-z0-9_-]*")
_MAX_CHARS = 1024


class JoinLink(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job's coordinator is, what it is known by, and what lets workers in."""

    host: str
    port: int
    run: str
    fingerprint: str = ""
    """Of the coordinator's certificate; empty where the job does without TLS."""
    secret: str = ""
    """Empty where it is given by another way."""

    @property
    def url(self) -> str:
        """The coordinator's address."""
        return f"{'wss' if self.fingerprint else 'ws'}://{bracketed(self.host)}:{self.port}"

    @property
    def text(self) -> str:
        """The link as it is pasted."""
        end = f"{self.fingerprint}.{self.secret}" if self.secret else self.fingerprint
        run = quote(self.run, safe="")
        return f"{SCHEME}{bracketed(self.host)}:{self.port}/{run}{f'#{end}' if end else ''}"

    @property
    def command(self) -> str:
        """What to type on another machine. Some shells take brackets for a pattern."""
        text = self.text
        return f"gangline join '{text}'" if "[" in text else f"gangline join {text}"

    @classmethod
    def parse(cls, text: str) -> JoinLink:
        """The link that somebody pasted; raises UsageError that says what is wrong with it."""
        if not text.startswith(SCHEME) or len(text) > _MAX_CHARS:
            raise _refusal(f"it must begin with {SCHEME} and have at most {_MAX_CHARS} characters")
        place, _, end = text.removeprefix(SCHEME).partition("#")
        address, _, run = place.partition("/")
        host, _, port = address.rpartition(":")
        fingerprint, _, secret = end.partition(".")
        if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
            raise _refusal(f"{address!r} is not HOST:PORT")
        if not _is_bracketed_host(host):
            raise _refusal(f"{host!r} is no name or address of a machine")
        if not run:
            raise _refusal("it does not name the run")
        if len(fingerprint) not in (0, FINGERPRINT_CHARS) or not _TEXT.fullmatch(fingerprint):
            raise _refusal(f"a fingerprint has {FINGERPRINT_CHARS} letters, digits, - and _")
        if not _TEXT.fullmatch(secret):
            raise _refusal("a secret is letters, digits, - and _")
        bare = host.removeprefix("[").removesuffix("]")
        if not fingerprint and not is_loopback(bare):
            raise _refusal("it has no fingerprint, without which anybody could answer there")
        return cls(
            host=bare,
            port=int(port),
            run=unquote(run),
            fingerprint=fingerprint,
            secret=secret,
        )


def bracketed(host: str) -> str:
    """A host as it is written before a port."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether an address is reached from its own machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(host: str) -> bool:
    """Whether an address stands for all interfaces of a machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""


def is_host(text: str) -> bool:
    """Whether this is an address, or can be the name, of a machine."""
    if ":" in text:
        try:
            return ipaddress.ip_address(text).version == 6 and "%" not in text
        except ValueError:
            return False
    return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})", text) is not None


def _is_bracketed_host(host: str) -> bool:
    is_bracketed = host.startswith("[") and host.endswith("]")
    return is_host(host[1:-1] if is_bracketed else host) and is_bracketed == (":" in host)


def _refusal(why: str) -> UsageError:
    return UsageError(
        f"this is no link to a job: {why}; paste the whole line that `gangline up` or "
        "`gangline token make` printed"
    )
