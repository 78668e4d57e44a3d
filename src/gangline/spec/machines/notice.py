# SPDX-License-Identifier: Apache-2.0
"""What may say that a machine is about to end: a signal, a file that appears, a command."""

from __future__ import annotations

import shlex

from gangline.spec.errors import UsageError

SIGTERM = "sigterm"
FILE, COMMAND = "file:", "command:"
LEAST_NOTICE_S, MOST_NOTICE_S = 1.0, 86400.0
DEFAULT_NOTICE_S = 30.0


def check_notice(text: str, *, name: str) -> None:
    """Refuses what says nothing; `name` is what the user wrote it behind."""
    kind, _, rest = text.partition(":")
    is_known = text == SIGTERM or (f"{kind}:" in (FILE, COMMAND) and rest.strip())
    if not is_known:
        raise UsageError(
            f"{name} {text!r} is no notice: write sigterm, file:PATH, such as file:/run/preempt, or "
            "command:COMMAND, such as 'command:curl -sf http://169.254.169.254/…'"
        )
    if text.startswith(COMMAND):
        try:
            shlex.split(rest)
        except ValueError as error:
            raise UsageError(f"{name} {text!r} is no command: {error}") from error


def check_notice_s(value: float, *, name: str) -> None:
    """Refuses times in which nobody can leave, and such that are no deadline."""
    if not LEAST_NOTICE_S <= value <= MOST_NOTICE_S:
        raise UsageError(
            f"{name} must be {LEAST_NOTICE_S:g} to {MOST_NOTICE_S:g} seconds, not {value}"
        )
