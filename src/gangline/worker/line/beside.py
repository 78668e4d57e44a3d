# SPDX-License-Identifier: Apache-2.0
"""A small process beside each worker: it says that the worker computes while that one cannot say so.

Python lets one thread run at a time. While the script holds on to that (a large `json.loads`), the
threads that talk to the coordinator stand still, and a busy worker looks like one that hangs. So the
worker writes a line into a pipe with each of its pings. When the lines stay away, the process at the
other end looks at what the system knows of the worker: it is busy if it is running, or waits for a
disk, or has used the processor since the last look. A process that was stopped, or sleeps, is not.

The process is this file, run by path with nothing but the standard library: `python -I -S beside.py
PID`. Lines are JSON. It ends with the worker: then the pipe does, too.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

SILENT_S = 1.0
"""A worker whose lines stay away for so long is looked at; its pings come every half second."""
LOOK_S = 0.5
_TIMEOUT_S = 2.0
_AT_WORK = "RD"
_STOPPED = "TtZXx"


class Beside:
    """The worker's end."""

    def __init__(self, *, token: str, authority: str | None) -> None:
        """`authority` is a PEM file: who must vouch for a coordinator that speaks TLS."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        self._lock = threading.Lock()
        self.pipe = [self._process.stdin.fileno()]
        """The descriptor of the pipe, which a forked child must not hold; none when it is closed."""
        os.set_blocking(self.pipe[0], False)
        self._write({"token": token, "authority": authority})

    def beat(self, url: str, worker: int) -> None:
        """The worker's threads run: it will be spoken for when they do not."""
        self._write({"url": url, "worker": worker})

    def close(self) -> None:
        """Nobody speaks for the worker any more."""
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError):
            self.pipe.clear()  # first: the number may be another file's as soon as it is closed
            self._process.stdin.close()
        try:
            self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, line: dict[str, object]) -> None:
        # Who does not read, or is gone, speaks for nobody; the worker trains on.
        with self._lock, contextlib.suppress(OSError, ValueError):
            for pipe in self.pipe:
                os.write(pipe, json.dumps(line).encode() + b"\n")


# --- the process beside the worker ------------------------------------------------------------------


class Vitals:
    """What the system knows of a process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used = self._read()[1]

    def is_busy(self) -> bool:
        """Whether the process has been at work since the last look."""
        state, used = self._read()
        has_used, self._used = used > self._used, used
        return state not in _STOPPED and (state in _AT_WORK or has_used)

    def _read(self) -> tuple[str, int]:
        """The state of the process, and what it has used of the processor, in the system's units."""
        try:
            with open(f"/proc/{self._pid}/stat", encoding="utf-8", errors="replace") as file:
                state, *fields = file.read().rpartition(")")[2].split()
        except OSError:
            return "X", 0
        return state, int(fields[10]) + int(fields[11])


def speak_for(pid: int) -> None:
    """Reads the worker's lines until they end, and speaks for it while they stay away."""
    vitals, known, rest = Vitals(pid), {}, b""
    heard_s = time.monotonic()
    while os.getppid() == pid:
        if select.select([0], [], [], LOOK_S)[0]:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                known.update(json.loads(line))
            heard_s = time.monotonic()
            continue
        is_busy = vitals.is_busy()
        if is_busy and "url" in known and time.monotonic() - heard_s >= SILENT_S:
            with contextlib.suppress(OSError, ValueError):
                _tell(known, pid)


def _tell(known: dict[str, object], pid: int) -> None:
    """Tells the coordinator that the worker is busy."""
    import http.client  # only now: it is seldom needed, and takes memory

    url, authority = urlsplit(str(known["url"])), known["authority"]
    host, port = url.hostname or "", url.port or 0
    if url.scheme == "wss":
        import ssl

        context = ssl.create_default_context(cafile=None if authority is None else str(authority))
        line: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=_TIMEOUT_S, context=context
        )
    else:
        line = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    with contextlib.closing(line), contextlib.suppress(http.client.HTTPException):
        body = json.dumps({"worker": known["worker"], "pid": pid})
        line.request(
            "POST", "/api/busy", body, headers={"Authorization": f"Bearer {known['token']}"}
        )
        line.getresponse().read()


def main() -> None:
    """Asked to end, it goes on: it ends when the worker does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    speak_for(int(sys.argv[1]))


if __name__ == "__main__":
    main()
