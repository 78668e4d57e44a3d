# SPDX-License-Identifier: Apache-2.0
"""What a hub wants said, and what it says to workers that come too late."""

from __future__ import annotations

from typing import NamedTuple

from gangline.protocol.messages import FromCoordinator, Refused

OVER = Refused(reason="the job is over, its workers have ended", is_left_behind=True)
LEFT_BEHIND = Refused(
    reason=(
        "the job has ended without this worker, which did not answer for too long: its parameters "
        "are not those that were trained. Take those of the others, or of the last checkpoint"
    ),
    is_left_behind=True,
)


class Outgoing(NamedTuple):
    """A message, and the worker that it goes to."""

    worker: int
    message: FromCoordinator
