# SPDX-License-Identifier: Apache-2.0
"""What people and the coordinator say to each other over HTTP."""

from __future__ import annotations

import msgspec

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


class LeaveRequest(msgspec.Struct, kw_only=True):
    """What `gangline leave` sends."""

    worker: int
    has_ended: bool = False
    """Its process is no more: where the job has not begun, it begins without it."""


class CertificateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a machine sends whose workers join over TLS."""

    request: str
    """A certificate signing request (PEM)."""


class CertificateAnswer(msgspec.Struct, kw_only=True):
    """What it gets."""

    certificate: str
    """Signed by the run's authority (PEM)."""
