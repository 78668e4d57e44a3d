# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint that a worker has written is part of the job's history."""

from __future__ import annotations

from gangline.protocol.messages import CheckpointAnswered, CheckpointWritten
from gangline.spec.event import Decision


def judge(
    worker: int, written: CheckpointWritten, *, member_since: int | None, now: float
) -> tuple[CheckpointAnswered, Decision | None]:
    """The answer, and what to write down where it is no.

    Agreed if the worker has been in all groups since the copy: then its state is the job's. What is
    agreed on is written down by the worker, when the marker has moved.
    """
    if member_since is not None and member_since <= written.group:
        return CheckpointAnswered(step=written.step, is_agreed=True, reason=""), None
    reason = f"the job went on without worker {worker} since it copied step {written.step}"
    numbers = {"worker": worker, "step": written.step, "group": written.group}
    refused = Decision(t=now, what="checkpoint_refused", reason=reason, numbers=numbers)
    return CheckpointAnswered(step=written.step, is_agreed=False, reason=reason), refused
