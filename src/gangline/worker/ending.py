# SPDX-License-Identifier: Apache-2.0
"""A script ends by an exception of its own, which has to do with who takes part: what is said then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import GanglineError
from gangline.worker.memory import is_out_of_memory

if TYPE_CHECKING:
    from gangline.worker.loop.training import Training

HAS_LEFT = (
    "gangline: this worker has left the job, as it was asked to. There are no more batches for its "
    "loop, which ended by a StopIteration: that is no failure\n"
)


def is_out_of_batches(error: BaseException | None) -> bool:
    """Whether a script ended because its loop asked a loader by `next`, which had nothing more."""
    return isinstance(error, StopIteration) or (
        error is not None and isinstance(error.__cause__, StopIteration)
    )


def explain_size(error: BaseException | None, training: Training) -> str:
    """What may be behind an error in the first batch after the shares have changed; else nothing."""
    sizes = training.sizes
    is_ours = isinstance(error, GanglineError) or is_out_of_memory(error)
    if is_ours or sizes is None or not isinstance(error, RuntimeError | ValueError | IndexError):
        return ""
    return (
        f"gangline: the script failed in a batch of {sizes[1]} samples, after one of {sizes[0]}. A "
        "worker's share changes while the job runs: when others are lost or join, and as their speeds "
        "do. If the loop carries something of the size of a batch from one to the next, as hidden "
        "states are, keep it in a gangline.SampleState, whose entries follow their samples\n"
    )
