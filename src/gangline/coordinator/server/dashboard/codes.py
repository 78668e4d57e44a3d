# SPDX-License-Identifier: Apache-2.0
"""How a browser gets in: a code that is good once, then a cookie that says which role it has.

Codes are kept as hashes, in memory. Cookies are not kept: they are signed with a key that is made of
the operator's token, so a coordinator that is started again knows them. Only those that were given
back are remembered, until their time is over anyway, or the coordinator ends.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from gangline.coordinator.server.access import Role

if TYPE_CHECKING:
    from collections.abc import Callable

CODE_LASTS_S = 600.0
SESSION_LASTS_S = 12 * 3600.0
MAX_CODES = 32
"""So many are good at the same time; one more, and the oldest is not."""
_MAX_COOKIE_CHARS = 256


class _Code(NamedTuple):
    digest: bytes
    role: Role
    ends_s: float


class LoginCodes:
    """The codes that are good now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._codes: list[_Code] = []

    def make(self, role: Role) -> str:
        """A code that nobody can guess, for somebody of this role."""
        code = secrets.token_urlsafe(16)
        made = _Code(_digest(code), role, self._clock() + CODE_LASTS_S)
        self._codes = [*self._valid(), made][-MAX_CODES:]
        return code

    def use(self, code: str) -> Role | None:
        """The role that a code gives, which is spent then; None where it is not good."""
        digest = _digest(code)
        valid = self._valid()
        found = [one for one in valid if hmac.compare_digest(one.digest, digest)]
        self._codes = [one for one in valid if one not in found]
        return found[0].role if found else None

    def _valid(self) -> list[_Code]:
        now = self._clock()
        return [one for one in self._codes if one.ends_s > now]


class Sessions:
    """Makes the values of cookies, and knows them again."""

    def __init__(self, secret: str, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret.encode(), b"gangline dashboard", "sha256")
        self._clock = clock
        self._ended: dict[str, int] = {}
        """By their bodies: cookies that were given back, and when their time is over."""

    def make(self, role: Role) -> str:
        """The value of a cookie for this role."""
        ends_s = int(self._clock() + SESSION_LASTS_S)
        body = f"{role.name.lower()}.{ends_s}.{secrets.token_urlsafe(12)}"
        return f"{body}.{self._sign(body)}"

    def role_of(self, value: str) -> Role | None:
        """The role that a cookie was made for; None where it is not ours, too old, or given back."""
        body, _, signature = value.rpartition(".")
        if len(value) > _MAX_COOKIE_CHARS or not value.isascii():
            return None
        if not hmac.compare_digest(self._sign(body), signature):
            return None
        role, ends_s, _ = body.split(".")
        is_good = int(ends_s) > self._clock() and body not in self._ended
        return Role[role.upper()] if is_good else None

    def end(self, value: str) -> None:
        """A cookie is given back: from now on nobody is known by it."""
        if self.role_of(value) is None:
            return
        body, now = value.rpartition(".")[0], self._clock()
        self._ended = {one: ends_s for one, ends_s in self._ended.items() if ends_s > now}
        self._ended[body] = int(body.split(".")[1])

    def _sign(self, body: str) -> str:
        signature = hmac.digest(self._key, body.encode(), "sha256")
        return base64.urlsafe_b64encode(signature).decode().rstrip("=")


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
