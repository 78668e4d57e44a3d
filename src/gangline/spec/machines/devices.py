# SPDX-License-Identifier: Apache-2.0
"""Which devices the workers of a machine compute on: one GPU each, or none."""

from __future__ import annotations

import re

from gangline.spec.errors import UsageError

AUTO, CPU = "auto", "cpu"
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""What a process sees of this machine's GPUs; its first one is `cuda:0` to it."""
_NAME = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


def check_devices(text: str, *, name: str) -> None:
    """Refuses what names no devices; `name` is what the user wrote it behind."""
    if text in (AUTO, CPU):
        return
    names = text.split(",")
    wrong = [one for one in names if not _NAME.fullmatch(one)]
    if wrong:
        raise UsageError(
            f"{name} {text!r}: {wrong[0]!r} is no GPU; write auto, cpu, or GPUs as nvidia-smi "
            "numbers them, such as 0,1"
        )
    if len(set(names)) < len(names):
        raise UsageError(f"{name} {text!r} names a GPU twice; name each once")


def visible_to(worker: int, devices: str) -> dict[str, str]:
    """The variable that gives a worker its device: they take turns; nothing where none were chosen."""
    if devices == AUTO:
        return {}
    names = [""] if devices == CPU else devices.split(",")
    return {VISIBLE: names[worker % len(names)]}
