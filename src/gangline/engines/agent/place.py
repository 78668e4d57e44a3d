# SPDX-License-Identifier: Apache-2.0
"""Where workers run on a host: the folder, what was brought, and the files with their secrets."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.agent.calling import is_called
from gangline.files.announcement import Announcement
from gangline.files.certificates import write_tls_files
from gangline.files.tokens import WORKER_TOKEN
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from gangline.files.tls import TlsFiles
    from gangline.protocol.agents import Brief, Coordinator, File
    from gangline.protocol.launch import Launch

_CODE = "code"
_MAX_FOLDERS = 1000


class HostPlace:
    """The folders of one run on this host. Raises LaunchError where they cannot be."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self.folder = _find_folder(brief)
        self.run_dir = _make_run_dir(self.folder, f"{brief.run}@{brief.host}")
        self._code = self.run_dir / _CODE
        self._tls: TlsFiles | None = None
        self._reached_at: str | None = None
        self.calls_out = False
        """Whether workers open all connections: others do not get through to this host."""

    @property
    def program(self) -> tuple[str, ...]:
        """What python is given."""
        brief = self._brief
        what = ("-m", brief.module) if brief.module is not None else (str(self._script),)
        return (*what, *brief.arguments)

    @property
    def variables(self) -> dict[str, str]:
        """What python must be told to find a module that was brought."""
        if not self._brief.brings or self._brief.module is None:
            return {}
        before = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": f"{self._code}{os.pathsep}{before}" if before else str(self._code)}

    @property
    def _script(self) -> Path:
        return (self._code if self._brief.brings else self.folder) / (self._brief.script or "")

    def write(self, file: File) -> None:
        """Puts a file that is brought, or a piece of it, into a folder that was made for it."""
        name = PurePosixPath(file.name)
        if name.is_absolute() or not name.parts or ".." in name.parts or "\0" in file.name:
            raise LaunchError(
                f"a file that was brought has the name {file.name!r}, which leads out"
            )
        path = self._code / name
        kind = (os.O_CREAT | os.O_EXCL) if file.is_first else os.O_APPEND
        mode = 0o700 if file.is_executable else 0o600
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind
            with os.fdopen(os.open(path, flags, mode), "wb") as opened:
                opened.write(file.data)
        except OSError as error:
            raise LaunchError(
                f"{file.name} cannot be written to {self._code}: {_why(error)}"
            ) from error

    def check(self) -> None:
        """Refuses to begin without the script, before several workers fail at it."""
        if self._brief.script is not None and not self._script.is_file():
            raise LaunchError(
                f"there is no script {self._script}: copy it there, name another folder in the hosts "
                "file, or have it brought by --bring"
            )
        free = shutil.disk_usage(self.run_dir).free
        if free < LEAST_FREE_BYTES:
            raise LaunchError(
                f"{self.run_dir} has {free >> 20} MiB left, and workers write their logs there: make "
                "room, or name another folder in the hosts file"
            )

    def meet(self, coordinator: Coordinator) -> None:
        """Notes where the coordinator is; the first time, the secrets too."""
        try:
            if self._tls is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with os.fdopen(os.open(self.run_dir / WORKER_TOKEN, flags, 0o600), "w") as file:
                    file.write(coordinator.token + "\n")
                self._tls = write_tls_files(
                    self.run_dir,
                    coordinator.certificate.encode(),
                    coordinator.key.encode(),
                    authority=coordinator.authority.encode(),
                )
                self.calls_out = self._must_call_out(coordinator, self._tls)
                self._reached_at = coordinator.reached_at
            Announcement(run=self._brief.run, url=coordinator.url, pid=0).write(self.run_dir)
        except OSError as error:
            raise LaunchError(f"{self.run_dir} cannot be written: {_why(error)}") from error

    @staticmethod
    def _must_call_out(coordinator: Coordinator, tls: TlsFiles) -> bool:
        if coordinator.calls_out is not None:
            return coordinator.calls_out
        url, token, ports = coordinator.url, coordinator.token, coordinator.ports
        return is_called(url, token=token, tls=tls, ports=ports) is False

    def own(self, launch: Launch) -> Launch:
        """What a worker is told, with the paths of this host."""
        assert self._tls is not None
        wire = self._tls.applied_to(launch.config.wire)
        calls_out = self.calls_out or wire.calls_out
        config = msgspec.structs.replace(
            launch.config,
            wire=msgspec.structs.replace(
                wire, calls_out=calls_out, address=self._reached_at or wire.address
            ),
        )
        return msgspec.structs.replace(
            launch,
            run_dir=str(self.run_dir),
            token_file=str(self.run_dir / WORKER_TOKEN),
            config=config,
        )

    def forget(self) -> None:
        """Removes what is secret, and what was brought; the logs stay."""
        (self.run_dir / WORKER_TOKEN).unlink(missing_ok=True)
        for folder in ("tls", _CODE):
            shutil.rmtree(self.run_dir / folder, ignore_errors=True)


LEAST_FREE_BYTES = 16 << 20
"""With less than this, nothing is begun on a host."""


def _find_folder(brief: Brief) -> Path:
    folder = Path("~" if brief.folder is None else brief.folder).expanduser()
    if brief.brings:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(f"the folder {folder} cannot be made: {_why(error)}") from error
    if not folder.is_dir():
        raise LaunchError(
            f"there is no folder {folder}: make it, name another one by `folder` in the hosts file, or "
            "have the script brought by --bring"
        )
    return folder


def _make_run_dir(folder: Path, name: str) -> Path:
    for attempt in range(1, _MAX_FOLDERS):
        path = folder / "runs" / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.parent.mkdir(exist_ok=True)
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise LaunchError(
                f"the folder {path} cannot be made: {_why(error)}; name another `folder`"
            ) from error
        return path
    raise LaunchError(f"there are too many folders named {name} in {folder / 'runs'}: remove some")


def _why(error: OSError) -> str:
    return error.strerror or str(error)
