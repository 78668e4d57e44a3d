# SPDX-License-Identifier: Apache-2.0
"""Whatever a coordinator wants done, as values: what `Coordinator.handle` returns, in order.

A driver carries them out. The order matters: what is kept must be on the disk before anybody is told.
"""

from __future__ import annotations

import msgspec

from gangline.coordinator.kept.records import AnyRecord
from gangline.protocol.messages import FromCoordinator
from gangline.spec.event import AnyEvent
from gangline.spec.plan import Plan


class _Output(msgspec.Struct, frozen=True, kw_only=True, tag_field="output"):
    """What all outputs have: a kind."""


class Send(_Output, frozen=True, kw_only=True, tag="send"):
    """A message for a worker, if it is connected."""

    worker: int
    message: FromCoordinator


class Keep(_Output, frozen=True, kw_only=True, tag="keep"):
    """A record that a coordinator which is started again must know."""

    record: AnyRecord


class Write(_Output, frozen=True, kw_only=True, tag="write"):
    """An event for the log."""

    event: AnyEvent


class KeepPlan(_Output, frozen=True, kw_only=True, tag="keep_plan"):
    """A plan for people to read."""

    plan: Plan


class Admitted(_Output, frozen=True, kw_only=True, tag="admitted"):
    """The answer to a hello: the worker's number."""

    worker: int


class Refusal(_Output, frozen=True, kw_only=True, tag="refusal"):
    """What was asked for cannot be, and why."""

    reason: str


class Stumbled(_Output, frozen=True, kw_only=True, tag="stumbled"):
    """The coordinator has an error that this input brought to light. The job goes on without it."""

    error: str
    trace: str


Output = Send | Keep | Write | KeepPlan | Admitted | Refusal | Stumbled
