# SPDX-License-Identifier: Apache-2.0
"""The first thing in a worker process: ties its life to the launcher's, then becomes python.

Run by path with nothing but the standard library: `python -I -S child.py LAUNCHER PROGRAM ARG…`,
where LAUNCHER is a process id. The tie survives the `exec`: however the launcher ends, the kernel
kills the worker with it. On a system without such a tie (not Linux) the guard alone cleans up.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _die_with(launcher_pid: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The launcher may have died before the tie was made; then nobody would ever kill us.
    if os.getppid() != launcher_pid:
        sys.exit("the launcher ended before this worker started")


def main(arguments: list[str]) -> None:
    """Never returns: the process becomes `arguments[1:]`."""
    _die_with(int(arguments[0]))
    os.execv(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
