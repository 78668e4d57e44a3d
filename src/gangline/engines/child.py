# SPDX-License-Identifier: Apache-2.0
"""The first thing in a worker process: ties its life to the launcher's, then becomes python.

Run by path with nothing but the standard library: `python -I -S child.py LAUNCHER NAMESPACE GROUP
PROGRAM ARG…`, where LAUNCHER is a process id. The tie survives the `exec`: however the launcher ends,
the kernel kills the worker with it. On a system without such a tie (not Linux) the guard alone cleans
up. NAMESPACE (a descriptor) and GROUP (a folder) are what the process is put into; `-` is none.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNET = 0x40000000
_NONE = "-"


def _die_with(launcher_pid: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The launcher may have died before the tie was made; then nobody would ever kill us.
    if os.getppid() != launcher_pid:
        sys.exit("the launcher ended before this worker started")


def _enter_network(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns(CLONE_NEWNET) failed")
    os.close(namespace)


def _enter_group(folder: str) -> None:
    with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as file:
        file.write(str(os.getpid()))


def main(arguments: list[str]) -> None:
    """Never returns: the process becomes what follows the first three arguments."""
    launcher, namespace, group, *program = arguments
    _die_with(int(launcher))
    # A shell that starts the launcher in the background has this signal ignored, and python would
    # leave it so: the launcher ends its workers by it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if group != _NONE:
        _enter_group(group)
    if namespace != _NONE:
        _enter_network(int(namespace))
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
