# SPDX-License-Identifier: Apache-2.0
"""Whatever can happen to a coordinator, as values: what `Coordinator.handle` is given.

They can be written down and read again, so that a recorded run can be put through `handle` once more.
None holds a secret: who may say what is the server's business.
"""

from __future__ import annotations

import msgspec

from gangline.protocol.lifeline import Depart, Dissolve, ProcessEnded
from gangline.protocol.messages import FromWorker, Hello
from gangline.protocol.status import ReplanRequest


class _Input(msgspec.Struct, frozen=True, kw_only=True, tag_field="input"):
    """What all inputs have: a kind."""


class Tick(_Input, frozen=True, kw_only=True, tag="tick"):
    """Time has passed."""


class Connected(_Input, frozen=True, kw_only=True, tag="connected"):
    """A worker said hello."""

    hello: Hello


class Disconnected(_Input, frozen=True, kw_only=True, tag="disconnected"):
    """A worker's connection is gone; the worker itself may be well."""

    worker: int


class Said(_Input, frozen=True, kw_only=True, tag="said"):
    """A worker said something after its hello."""

    worker: int
    message: FromWorker


class StepsReported(_Input, frozen=True, kw_only=True, tag="steps_reported"):
    """What many workers say of one step, as `Measured` each: packed numbers, one for each worker."""

    step: int
    view: int
    team: int = -1
    workers: bytes
    """Whole numbers of 8 bytes, the lowest first, as `samples` and `hop_peers` are."""
    samples: bytes
    compute_s: bytes
    """Floating point numbers of 8 bytes, as `exchange_s` and `hop_s` are."""
    exchange_s: bytes
    other_s: float = 0.0
    hop_peers: bytes = b""
    """One hop of each; nothing where nobody knows of any."""
    hop_s: bytes = b""


class SeenBusy(_Input, frozen=True, kw_only=True, tag="seen_busy"):
    """Somebody beside a worker says that it computes, and cannot say so itself."""

    worker: int
    pid: int


class Ordered(_Input, frozen=True, kw_only=True, tag="ordered"):
    """The launcher says that a process has ended, or ends the job, or that its machine will end."""

    order: ProcessEnded | Dissolve | Depart


class LeaveAsked(_Input, frozen=True, kw_only=True, tag="leave_asked"):
    """An operator wants a worker to leave the job."""

    worker: int


class ReplanAsked(_Input, frozen=True, kw_only=True, tag="replan_asked"):
    """An operator wants the workers to exchange in another structure."""

    request: ReplanRequest


class SyncAsked(_Input, frozen=True, kw_only=True, tag="sync_asked"):
    """An operator wants groups to be held together in another way."""

    sync: str


class ExclusionAsked(_Input, frozen=True, kw_only=True, tag="exclusion_asked"):
    """An operator wants a worker kept out until it is taken back; or takes it back."""

    worker: int
    is_out: bool


class PauseAsked(_Input, frozen=True, kw_only=True, tag="pause_asked"):
    """An operator wants the job to stand still between two steps; or to go on."""

    is_paused: bool


class CheckpointAsked(_Input, frozen=True, kw_only=True, tag="checkpoint_asked"):
    """An operator wants a checkpoint now."""


class EndAsked(_Input, frozen=True, kw_only=True, tag="end_asked"):
    """An operator wants the job to end: everybody leaves, and the last one writes a checkpoint."""


class SurveyAsked(_Input, frozen=True, kw_only=True, tag="survey_asked"):
    """An operator wants the links between the workers measured."""


Input = (
    Tick
    | Connected
    | Disconnected
    | Said
    | StepsReported
    | SeenBusy
    | Ordered
    | LeaveAsked
    | ReplanAsked
    | SyncAsked
    | ExclusionAsked
    | PauseAsked
    | CheckpointAsked
    | EndAsked
    | SurveyAsked
)
