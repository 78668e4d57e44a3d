# SPDX-License-Identifier: Apache-2.0
"""A run's invitations: secrets that let workers in, for a short time and a number of machines.

The run folder has them in `invitations.json`, by their hashes only, so that a coordinator that is
started again knows them. While a coordinator runs, nobody else writes there.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from gangline.files.plainfile import read_plain, replace_plain
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INVITATIONS_FILE = "invitations.json"
DEFAULT_LASTS_S = 600.0
DEFAULT_USES = 16
MAX_LASTS_S = 30 * 86400.0
MAX_USES = 4096
_KEPT = 256
"""So many are remembered, so that who comes too late is told why."""


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """One secret, and what is left of it."""

    name: str
    """By which it is withdrawn."""
    digest: str
    """The secret's SHA-256."""
    made_s: float
    ends_s: float
    """Seconds since 1970."""
    uses: int
    """How many machines it lets in."""
    used: int = 0
    is_withdrawn: bool = False

    def state(self, now_s: float) -> str:
        """`open`, `withdrawn`, `used up` or `expired`."""
        if self.is_withdrawn:
            return "withdrawn"
        if self.used >= self.uses:
            return "used up"
        return "expired" if now_s >= self.ends_s else "open"


class WrongSecretError(UsageError):
    """No invitation of this run has that secret."""


class SpentSecretError(UsageError):
    """The invitation with that secret lets nobody in any more."""


class Invitations:
    """The invitations of one run; without a folder they are forgotten with this object."""

    def __init__(self, run_dir: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        self._path = None if run_dir is None else run_dir / INVITATIONS_FILE
        self._clock = clock
        self._all = [] if self._path is None else _read(self._path)

    def make(
        self, *, lasts_s: float = DEFAULT_LASTS_S, uses: int = DEFAULT_USES
    ) -> tuple[str, Invitation]:
        """A new secret, which is kept nowhere, and its invitation."""
        if not (math.isfinite(lasts_s) and 0 < lasts_s <= MAX_LASTS_S):
            raise UsageError(
                f"an invitation lasts more than 0 and at most {MAX_LASTS_S:.0f} seconds "
                f"(30 days), not {lasts_s:g}"
            )
        if not 1 <= uses <= MAX_USES:
            raise UsageError(f"an invitation has 1 to {MAX_USES} uses, not {uses}")
        secret, now_s = secrets.token_urlsafe(16), self._clock()
        made = Invitation(
            name=secrets.token_hex(4),
            digest=_digest(secret),
            made_s=now_s,
            ends_s=now_s + lasts_s,
            uses=uses,
        )
        self._keep([*self._all, made][-_KEPT:])
        return secret, made

    def listed(self) -> list[Invitation]:
        """All that are remembered, oldest first."""
        return list(self._all)

    def check(self, secret: bytes) -> Invitation:
        """The invitation with this secret, if it lets somebody in; else an error says why not.

        Takes as long for a wrong secret as for a right one.
        """
        given = _digest(secret.decode("latin-1"))
        found = [one for one in self._all if hmac.compare_digest(one.digest, given)]
        if not found:
            raise WrongSecretError(
                "no invitation of this run has that secret: paste the whole line that was "
                "printed, or have a new one made with `gangline token make RUN_DIR`"
            )
        state = found[0].state(self._clock())
        if state != "open":
            raise SpentSecretError(_why_not(found[0], state))
        return found[0]

    def use(self, secret: bytes) -> Invitation:
        """Lets one machine in."""
        found = self.check(secret)
        used = msgspec.structs.replace(found, used=found.used + 1)
        self._keep([used if one is found else one for one in self._all])
        return used

    def withdraw(self, name: str) -> Invitation:
        """From here on this one lets nobody in."""
        found = next((one for one in self._all if one.name == name), None)
        if found is None:
            known = ", ".join(one.name for one in self._all[-8:]) or "none"
            raise UsageError(f"there is no invitation {name!r}; the newest are: {known}")
        withdrawn = msgspec.structs.replace(found, is_withdrawn=True)
        self._keep([withdrawn if one is found else one for one in self._all])
        return withdrawn

    def _keep(self, every: list[Invitation]) -> None:
        """On the disk before anybody is told."""
        if self._path is not None:
            replace_plain(self._path, msgspec.json.encode(every))
        self._all = every


def _read(path: Path) -> list[Invitation]:
    try:
        return msgspec.json.decode(read_plain(path), type=list[Invitation])
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} does not hold a run's invitations: {error}") from error


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _why_not(invitation: Invitation, state: str) -> str:
    again = "have a new one made there with `gangline token make RUN_DIR`"
    if state == "withdrawn":
        return f"this invitation ({invitation.name}) was withdrawn: {again}"
    if state == "used up":
        machines = "1 machine" if invitation.uses == 1 else f"{invitation.uses} machines"
        return f"this invitation ({invitation.name}) has let in {machines}, and is used up: {again}"
    ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(invitation.ends_s))
    return f"this invitation ({invitation.name}) expired at {ended}: {again}"
