# SPDX-License-Identifier: Apache-2.0
"""What machines that join, people who invite them, and the coordinator say to each other."""

from __future__ import annotations

import msgspec


class EnterAnswer(msgspec.Struct, kw_only=True):
    """What a machine with an invitation gets for its secret."""

    run: str
    token: str
    """The workers' token."""
    authority: str = ""
    """Who vouches for the coordinator and the other workers (PEM); empty without TLS."""


class InvitationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `gangline token make` sends."""

    lasts_s: float
    uses: int


class InvitationAnswer(msgspec.Struct, kw_only=True):
    """What it gets."""

    name: str
    secret: str
    ends_s: float
    uses: int


class WithdrawRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `gangline token withdraw` sends."""

    name: str


class InvitationStatus(msgspec.Struct, kw_only=True):
    """One invitation, as `gangline token list` shows it."""

    name: str
    state: str
    """`open`, `used up`, `expired` or `withdrawn`."""
    uses: int
    used: int
    made_s: float
    ends_s: float
