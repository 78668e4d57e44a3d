# SPDX-License-Identifier: Apache-2.0
"""Kills what the workers started (data-loader processes, tools) if the launcher itself is killed.

Run by path with nothing but the standard library. The launcher writes one line per process group to
the guard's standard input: `+PID` when it starts one, `-PID` when it has cleaned one up. The input
ends when the launcher does, in whatever way; the groups that are left are killed then.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def groups_left(lines: Iterable[str]) -> set[int]:
    """The process groups that were started and not cleaned up when the lines ended."""
    groups: set[int] = set()
    for line in lines:
        pid = int(line[1:])
        if line.startswith("+"):
            groups.add(pid)
        else:
            groups.discard(pid)
    return groups


def main() -> None:
    """Waits for the end of the input, then kills."""
    for pid in groups_left(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
