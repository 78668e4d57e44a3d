# SPDX-License-Identifier: Apache-2.0
"""What people and the coordinator say to each other over HTTP."""

from __future__ import annotations

import msgspec

from gangline.spec.exchange.structure import Structure
from gangline.spec.profile import ClusterProfile
from gangline.spec.view import View


class WorkerStatus(msgspec.Struct, kw_only=True):
    """What the coordinator knows of one worker."""

    worker: int
    host: str
    pid: int
    is_connected: bool
    state: str
    """`connected`, `ready`, `training`, `leaving`, `lost` or `gone`."""
    step: int = -1
    """The last step that it reported."""
    samples: int = 0
    compute_s: float = 0.0


class Status(msgspec.Struct, kw_only=True):
    """What `gangline status` shows."""

    run: str
    expected_workers: int
    workers: list[WorkerStatus]
    view: View | None
    step: int
    """The last step that all members reported."""
    decisions: list[str]
    """The latest reasons, newest last."""
    sync: str = ""
    """How groups are held together; empty before that is known."""
    is_paused: bool = False
    """Whether the job stands still, because an operator wants it to."""
    samples: int = 0
    """Samples of all steps that workers have reported, steps that were done again included."""
    logged: dict[str, float | None] = {}
    """What the scripts have logged: by name, the mean over all samples of the newest step."""


class CalledBack(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a call back to who asked for one."""

    seen_from: str
    """The address that the coordinator sees."""
    reach: str
    """`open`, `refused`, `filtered` or `unreachable`."""
    detail: str = ""
    is_known: bool = False
    """Whether it was answered by who asked."""


class LeaveRequest(msgspec.Struct, kw_only=True):
    """What `gangline leave` sends."""

    worker: int


class BusyRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is said beside a worker that computes, and cannot say so itself."""

    worker: int
    pid: int
    """Its process, as in its hello."""


class ReplanRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `gangline replan` sends."""

    structure: Structure | None = None
    """How the workers shall exchange; None: all in one ring."""
    is_auto: bool = False
    """Whether the structure is to be planned instead, from what is measured, from now on."""
    profile: ClusterProfile | None = None
    """What it is to be planned from: one node per worker, in the order of their numbers; those beyond
    its end are not known. None: what the job was started with."""


class SyncRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `gangline set RUN_DIR sync` sends."""

    sync: str


class ExcludeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `gangline exclude` and `gangline take-back` send."""

    worker: int
    is_out: bool
    """Whether it is to be kept out; else it is to come back."""


class PauseRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What `gangline pause` and `gangline resume` send."""

    is_paused: bool


class PlainRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is sent by an order that needs nothing: `gangline checkpoint`, `gangline end`."""


class SurveyedLink(msgspec.Struct, kw_only=True):
    """What two workers measured between them."""

    source: int
    target: int
    latency_s: float
    """One way."""
    num_bytes: int
    """Of a large message."""
    there_s: list[float]
    """Large messages from source to target, with a tiny answer."""
    back_s: list[float]
    """The other way."""


class SurveyStatus(msgspec.Struct, kw_only=True):
    """How far a survey of the links is, and what it found."""

    is_over: bool
    num_done: int
    num_pairs: int
    """How many pairs measure; 0 until that is known."""
    took_s: float | None
    hosts: list[list[int]]
    """The workers of each host."""
    links: list[SurveyedLink]
    errors: list[str]


class CertificateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a machine sends whose workers join over TLS."""

    request: str
    """A certificate signing request (PEM)."""


class CertificateAnswer(msgspec.Struct, kw_only=True):
    """What it gets."""

    certificate: str
    """Signed by the run's authority (PEM)."""
