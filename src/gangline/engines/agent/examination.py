# SPDX-License-Identifier: Apache-2.0
"""What `gangline doctor --hosts` wants to know of a host, as its agent finds it."""

from __future__ import annotations

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.protocol.agents import Dialled, Examined, Gpu
from gangline.protocol.reaching import (
    GREETING,
    greet_all,
    hang_up,
    interface_towards,
    listen_within,
    try_port,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from gangline.protocol.agents import Examine, Place

DIAL_S = 3.0
"""How long an attempt to reach somebody may take."""
_SMI_S = 5.0
_MOST_AT_ONCE = 32


class Examination:
    """Looks at this host, and listens for the others until it is closed."""

    def __init__(self, asked: Examine) -> None:
        self._asked = asked
        self._asked_at_s = time.time()
        self._listener: socket.socket | None = None
        self._problem = ""
        try:
            host = interface_towards(asked.coordinator, 1)
            self._listener = listen_within(host, asked.ports)
        except OSError as error:
            self._problem = error.strerror or str(error)
        if self._listener is not None:
            greet_all(self._listener)

    def result(self) -> Examined:
        """What was found."""
        folder = Path("~" if self._asked.folder is None else self._asked.folder).expanduser()
        address, port = ("", 0) if self._listener is None else self._listener.getsockname()[:2]
        return Examined(
            folder=str(folder),
            has_folder=folder.is_dir(),
            free_bytes=_free_bytes(folder),
            packages={name: version_of(name) for name in self._asked.packages},
            gpus=tuple(_gpus()),
            asked_at_s=self._asked_at_s,
            address=address,
            port=port,
            problem=self._problem,
            told_at_s=time.time(),
        )

    def close(self) -> None:
        """Listens no more."""
        if self._listener is not None:
            hang_up(self._listener)


def dial_all(places: Sequence[Place]) -> Dialled:
    """Tries to reach all of them, side by side."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        attempts = pool.map(
            lambda one: try_port(
                one.host, one.port, timeout_s=DIAL_S, greeting_bytes=len(GREETING)
            ),
            places,
        )
        return Dialled(
            attempts={place.name: attempt for place, attempt in zip(places, attempts, strict=True)}
        )


def version_of(package: str) -> str | None:
    """The installed version of a package; None: there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _free_bytes(folder: Path) -> int:
    """What is left where the folder is, or would be made."""
    for path in (folder, *folder.parents):
        if path.is_dir():
            return shutil.disk_usage(path).free
    return 0


def _gpus() -> list[Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = ["--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            [program, *query], capture_output=True, text=True, timeout=_SMI_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rpartition(",") for line in answer.stdout.splitlines()]
    return [
        Gpu(name=name.strip(), memory_mib=int(memory))
        for name, _, memory in rows
        if memory.strip().isdecimal()
    ]
