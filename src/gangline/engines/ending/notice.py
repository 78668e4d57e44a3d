# SPDX-License-Identifier: Apache-2.0
"""Looks, now and then, for what says that this machine is about to end."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from typing import TYPE_CHECKING

from gangline.spec.machines.notice import COMMAND, FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

POLL_S = 0.5
_COMMAND_S = 5.0
"""How long a command may take to answer."""
_NO = ("false", "none", "no", "0")
"""What a command may print that exits with 0 and means that nothing is about to end."""


class NoticeWatch:
    """Looks in a thread of its own: a command may take its time."""

    def __init__(self, notices: Sequence[str]) -> None:
        self._notices = [one for one in notices if one.startswith((FILE, COMMAND))]
        self._found = ""
        self._ending = threading.Event()
        if self._notices:
            threading.Thread(target=self._watch, name="gangline-notice", daemon=True).start()

    @property
    def found(self) -> str:
        """What says that this machine is about to end; empty: nothing does."""
        return self._found

    def close(self) -> None:
        """Looks no more."""
        self._ending.set()

    def _watch(self) -> None:
        while not self._found and not self._ending.wait(POLL_S):
            self._found = next((told for one in self._notices if (told := look(one))), "")


def look(notice: str) -> str:
    """What a notice says now, in words; empty: nothing."""
    if notice.startswith(FILE):
        path = notice.removeprefix(FILE)
        return f"{path} is there" if os.path.lexists(path) else ""
    command = notice.removeprefix(COMMAND)
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""  # what cannot answer says nothing
    printed = done.stdout.decode(errors="replace").strip()
    if done.returncode != 0 or printed.lower() in _NO:
        return ""
    return f"`{command}` says so" + (f": {printed.splitlines()[0][:80]}" if printed else "")
