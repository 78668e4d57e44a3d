# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: one folder per step, complete or not there at all.

    DIR/latest                  names the newest checkpoint that the job agreed on
    DIR/step-000000120/
        manifest.json           which step this is, of what, and the checksums of the other files
        model.safetensors       the model, by the names of its state_dict (or model-0, model-1, …)
        state.json              everything else; tensors are numbers into
        state.safetensors

A checkpoint is written beside its place and renamed into it, after everything has reached the disk.
Nothing is read before its checksum was compared, nothing is unpickled, and no link is followed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gangline.files.plainfile import open_plain, read_plain
from gangline.spec.errors import LogError
from gangline.worker.prepare.handshake import Introduction

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

FORMAT = 2
MANIFEST = "manifest.json"
STATE = "state.json"
STATE_TENSORS = "state.safetensors"
LATEST = "latest"
_FOLDER = re.compile(r"step-(\d{9,18})")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNFINISHED = (".writing-", ".removing-")


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """What a file must be like, to be the one that was written."""

    sha256: str
    num_bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint is the state of."""

    format: int = FORMAT
    run: str
    worker: int
    """Who wrote it."""
    step: int
    """The next optimizer update."""
    epoch: int
    start: int
    """Where in the epoch's order that update begins."""
    seed: int
    """The seed of the epochs' order."""
    introduction: Introduction
    """What was trained."""
    files: dict[str, FileSum] = {}
    checksum: str = ""
    """The SHA-256 of this manifest with an empty checksum."""

    def sealed(self, files: dict[str, FileSum]) -> Manifest:
        """With the checksums of its files, and its own."""
        filled = msgspec.structs.replace(self, files=files, checksum="")
        return msgspec.structs.replace(filled, checksum=filled.own_checksum())

    def own_checksum(self) -> str:
        bare = msgspec.structs.replace(self, checksum="")
        return hashlib.sha256(msgspec.json.encode(bare, order="deterministic")).hexdigest()


class Contents(NamedTuple):
    """What is in a checkpoint's files."""

    document: bytes
    """The text of state.json."""
    tensors: dict[str, dict[str, Tensor]]
    """The tensors of each safetensors file, by name."""


class CheckpointFolder:
    """The folder that holds a job's checkpoints."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.root / f"step-{step:09}"

    def steps(self) -> list[int]:
        """The steps of all checkpoints, newest first, good or not."""
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LogError(
                f"cannot read the checkpoint folder {self.root}: {error.strerror}; give another one"
            ) from error
        found = [match for name in names if (match := _FOLDER.fullmatch(name))]
        return sorted((int(match[1]) for match in found), reverse=True)

    def agreed_steps(self) -> list[int]:
        """The steps that a job may go on from, newest first: not after the latest agreed one."""
        latest = self.latest()
        return [step for step in self.steps() if latest is None or step <= latest]

    def latest(self) -> int | None:
        """The step that the marker names; None where there is no usable marker."""
        try:
            text = read_plain(self.root / LATEST).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        match = _FOLDER.fullmatch(text)
        return int(match[1]) if match else None

    def move_latest(self, step: int) -> None:
        """Lets the marker name this step, in one piece."""
        partial = self.root / f"{_UNFINISHED[0]}{LATEST}-{os.getpid()}"
        partial.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(open_plain(partial, flags), "w") as file:
            file.write(f"{self.path_of(step).name}\n")
        _seal(partial)
        partial.replace(self.root / LATEST)
        _sync_folder(self.root)

    def write(self, manifest: Manifest, contents: Contents) -> None:
        """Puts a checkpoint into its place, whole. Raises OSError or SafetensorError otherwise."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._clear()
        target = self.path_of(manifest.step)
        partial = self.root / f"{_UNFINISHED[0]}{target.name}-{os.getpid()}"
        partial.mkdir()
        try:
            _fill(partial, manifest, contents)
            if os.path.lexists(target):  # an abandoned branch of the job came this far
                _discard(target)
            partial.rename(target)
            _sync_folder(self.root)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def read(self, step: int) -> tuple[Manifest, Contents]:
        """A checkpoint whose checksums are right; raises LogError, with the file's name, if not."""
        path = self.path_of(step)
        if path.is_symlink() or not path.is_dir():
            raise LogError(f"{path} is not a folder of its own (links are not followed)")
        manifest = _read_manifest(path)
        if manifest.step != step:
            raise LogError(f"{path / MANIFEST} is that of step {manifest.step}")
        tensors = {}
        for name, expected in manifest.files.items():
            _verify(path / name, expected)
            if name.endswith(".safetensors"):
                try:
                    tensors[name] = load_file(path / name)
                except (OSError, SafetensorError) as error:
                    raise LogError(f"{path / name} holds no tensors: {error}") from error
        if STATE not in manifest.files or STATE_TENSORS not in tensors:
            raise LogError(f"{path / MANIFEST} names no {STATE} or no {STATE_TENSORS}")
        return manifest, Contents(read_plain(path / STATE), tensors)

    def prune(self, written: int, *, keep: int) -> None:
        """Removes what is older than the newest `keep`, and what an abandoned branch left behind."""
        latest = self.latest()
        steps = self.steps()
        agreed = [step for step in steps if latest is not None and step <= latest]
        waiting = [step for step in steps if step not in agreed and step <= written]
        for step in steps:
            if step not in agreed[:keep] and step not in waiting[:keep]:
                _discard(self.path_of(step))

    def remove(self, step: int) -> None:
        """Takes a checkpoint away."""
        _discard(self.path_of(step))

    def _clear(self) -> None:
        """Removes what a writer that was killed left behind."""
        for path in self.root.iterdir():
            if path.name.startswith(_UNFINISHED):
                _delete(path)


def _fill(folder: Path, manifest: Manifest, contents: Contents) -> None:
    for name, tensors in contents.tensors.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    (folder / STATE).write_bytes(contents.document)
    files = {name: _seal(folder / name) for name in sorted([*contents.tensors, STATE])}
    text = msgspec.json.encode(manifest.sealed(files))
    (folder / MANIFEST).write_bytes(msgspec.json.format(text, indent=2))
    _seal(folder / MANIFEST)
    _sync_folder(folder)


def _seal(path: Path) -> FileSum:
    """Brings a file to the disk; returns its checksum."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return FileSum(sha256=digest, num_bytes=os.fstat(file.fileno()).st_size)


def _sync_folder(path: Path) -> None:
    """Brings the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(read_plain(path), type=Manifest)
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(f"{path} is damaged, or of another version: {error}") from error
    if manifest.format != FORMAT:
        raise LogError(f"{path} has format {manifest.format}; this gangline reads {FORMAT}")
    if manifest.checksum != manifest.own_checksum():
        raise LogError(f"{path} is damaged: its checksum is not that of its content")
    for name in manifest.files:
        if not _FILE.fullmatch(name):
            raise LogError(f"{path} names a file {name!r}, which would lie outside of its folder")
    return manifest


def _verify(path: Path, expected: FileSum) -> None:
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    if size != expected.num_bytes:
        raise LogError(f"{path} has {size} bytes instead of {expected.num_bytes}")
    if digest != expected.sha256:
        raise LogError(f"{path} is damaged: its checksum is not the one in {MANIFEST}")


def _discard(path: Path) -> None:
    """Removes a checkpoint so that no half of it is ever found in its place."""
    aside = path.with_name(f"{_UNFINISHED[1]}{path.name}-{os.getpid()}")
    path.rename(aside)
    _delete(aside)


def _delete(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
