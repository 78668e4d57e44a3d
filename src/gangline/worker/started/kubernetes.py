# SPDX-License-Identifier: Apache-2.0
"""A pod of Kubernetes whose script is run by itself: its mounted Secret names the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.protocol.pods import find_pod
from gangline.worker.started.by_gangline import ByGangline

if TYPE_CHECKING:
    from collections.abc import Mapping


def recognise(environment: Mapping[str, str]) -> ByGangline | None:
    """A worker that joins the job of its Secret, with a number that the coordinator gives it."""
    launch = find_pod(environment)
    return None if launch is None else ByGangline(launch)
