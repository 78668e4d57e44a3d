# SPDX-License-Identifier: Apache-2.0
"""What is said of events that are missing from the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.spec.event import EventsLost


def describe_loss(loss: EventsLost) -> str:
    """Whose events are missing, how many, of which steps, and why."""
    steps = ""
    if loss.first_step >= 0:
        is_one = loss.first_step == loss.last_step
        named = (
            f"step {loss.first_step}" if is_one else f"steps {loss.first_step} to {loss.last_step}"
        )
        steps = f", {named}"
    return (
        f"events are missing: {loss.count} of {loss.source}{steps} ({loss.reason}); "
        "the ledger is incomplete"
    )


def describe_implausible(count: int) -> str:
    """The same for steps that no clock can have measured so."""
    which = "1 step was left out: its" if count == 1 else f"{count} steps were left out: their"
    return f"{which} times or samples are impossible"
