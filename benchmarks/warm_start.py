# SPDX-License-Identifier: Apache-2.0
"""Starts training processes that have imported everything already: importing torch takes seconds.

    python warm_start.py --serve SOCKET     # imports `parameter_server_train`, and forks when asked
    python warm_start.py SOCKET --model …   # asks, and ends as the forked process ends

`gangline run` starts the second form.

The process that is asked for gets the environment, the folder, the files and the network namespace of
who asks. It is killed when who asks has gone.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH = struct.Struct("!Q")
CLONE_NEWNET = 0x40000000
FAILED = 70


def receive(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer where the other side has gone."""
    found = b""
    while len(found) < size and (more := sock.recv(size - len(found))):
        found += more
    return found


def ask(path: str, arguments: list[str]) -> int:
    """Has a process made, and waits for its end."""
    asked = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
    message = json.dumps(asked).encode()
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        socket.send_fds(sock, [LENGTH.pack(len(message))], [0, 1, 2, network])
        sock.sendall(message)
        said = receive(sock, LENGTH.size)
    return LENGTH.unpack(said)[0] if len(said) == LENGTH.size else FAILED


def serve(path: str) -> None:
    """Forks for whoever asks, until it is ended."""
    import parameter_server_train as script  # here: who asks must not wait for it

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that look after others
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        while True:
            sock, _ = listener.accept()
            if os.fork():
                sock.close()
                continue
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            look_after(sock, script.main)


def look_after(sock: socket.socket, main: Callable[[], None]) -> None:
    """Forks the process that was asked for, says how it ended, and kills it if nobody waits."""
    header, files, _, _ = socket.recv_fds(sock, LENGTH.size, 4)
    asked = json.loads(receive(sock, LENGTH.unpack(header)[0]))
    child = os.fork()
    if child == 0:
        sock.close()
        become(asked, files, main)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([sock, ended], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        sock.sendall(LENGTH.pack(code if code >= 0 else 128 - code))
    finally:
        os._exit(0)


def become(asked: dict[str, Any], files: list[int], main: Callable[[], None]) -> None:
    """Does what was asked for, as whoever asked would have, and ends this process."""
    code = 0
    try:
        *standard, network = files
        for number, file in enumerate(standard):
            os.dup2(file, number)
        if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino and ctypes.CDLL(
            None, use_errno=True
        ).setns(network, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "the network namespace could not be entered")
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        sys.argv[1:] = asked["arguments"]
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()  # what the end of an interpreter does
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
