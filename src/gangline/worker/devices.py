# SPDX-License-Identifier: Apache-2.0
"""The device of this process among those that it sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gangline.protocol.launch import LAUNCH_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOCAL_RANK = "LOCAL_RANK"


def own_device(environment: Mapping[str, str]) -> torch.device:
    """A launcher of ours shows each worker its own GPU; under torchrun all workers see all of them."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = environment.get(_LOCAL_RANK, "")
    if LAUNCH_VARIABLE not in environment and local.isdecimal():
        return torch.device("cuda", int(local) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())
