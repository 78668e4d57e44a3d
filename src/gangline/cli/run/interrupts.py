# SPDX-License-Identifier: Apache-2.0
"""Leaves out of what is shown where Ctrl-C met each worker: on the screen that is noise."""

from __future__ import annotations

_BEGIN = b"Traceback (most recent call last):"
_INTERRUPT = b"KeyboardInterrupt"


class InterruptFilter:
    """Holds tracebacks back until it is seen what of; those of a KeyboardInterrupt are dropped.

    The worker's log has them all.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def take(self, line: bytes) -> list[bytes]:
        """The lines that can be shown now."""
        if line.rstrip() == _BEGIN:
            held, self._held = self._held, [line]
            return held
        if not self._held:
            return [line]
        if line.startswith(b" ") or not line.strip():  # a frame, or what it says of itself
            self._held.append(line)
            return []
        held, self._held = self._held, []
        return [] if line.startswith(_INTERRUPT) else [*held, line]

    def close(self) -> list[bytes]:
        """What was held back, and is shown after all: nothing more comes."""
        held, self._held = self._held, []
        return held
