# SPDX-License-Identifier: Apache-2.0
"""What the control function wants done. A driver carries it out, in the order given."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from gangline.spec.event import Decision, PlanMade
from gangline.spec.plan import Plan
from gangline.spec.view import View


class PublishView(msgspec.Struct, frozen=True, kw_only=True):
    """Tell all members of this view about it. They agree among themselves when it takes effect."""

    view: View
    is_recovery: bool = False
    """The group before it is broken: its members leave it at once, not at an agreed step."""


class Say(msgspec.Struct, frozen=True, kw_only=True):
    """Write this decision, with its reason and numbers, where people can read it."""

    decision: Decision


class KeepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Keep this plan where people can read it, and write down that it was made."""

    plan: Plan
    made: PlanMade


class TakeBack(msgspec.Struct, frozen=True, kw_only=True):
    """A spare may come back: let it join when the time is right."""

    worker: int


class LowerRate(msgspec.Struct, frozen=True, kw_only=True):
    """A team is slowed down by one of its workers: merge it with the others more rarely."""

    worker: int
    team: int


Command: TypeAlias = PublishView | Say | KeepPlan | TakeBack | LowerRate
