# SPDX-License-Identifier: Apache-2.0
"""Collects the code of a job on its first machine: what git knows of the script's folder.

Without git, the script alone, or of a module its package; and what the user names.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gangline.files.code import write_code
from gangline.files.plainfile import open_plain
from gangline.launch.joining.surroundings import imports_of, surroundings_of
from gangline.spec.errors import UsageError
from gangline.spec.machines.code import (
    DEFAULT_MAX_BYTES,
    MAX_FILES,
    CodeFile,
    CodeManifest,
    check_name,
    in_mib,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gangline.launch.program import Program

_GIT_TIMEOUT_S = 30.0
_SKIPPED = (".git", "__pycache__", "runs")
"""Folders that are no code, below one that the user names."""


class Brought(NamedTuple):
    """A file of a program that another machine needs."""

    name: str
    """Relative to the program's folder, with slashes."""
    path: Path
    is_executable: bool


class Collected(NamedTuple):
    """What is offered, and what is not."""

    manifest: CodeManifest
    left_out: tuple[str, ...] = ()
    """Links, though git knows them, or the user named them."""
    missing: tuple[str, ...] = ()
    """What lies there and is imported, but is not brought."""


def root_of(program: Program) -> Path:
    """The folder from which files are brought: the script's, or where a module is looked for."""
    return Path.cwd() if program.script is None else program.script.parent


def select_files(
    program: Program, include: Iterable[Path] = (), *, max_bytes: int = DEFAULT_MAX_BYTES
) -> list[Brought]:
    """What another machine needs, where it is sent there as it is."""
    root, names = root_of(program), sorted(_select(program, include)[0])
    if not names:
        raise UsageError(
            f"nothing in {root} can be brought: git knows no files there; name the module's files by "
            "--include"
        )
    files = [Brought(one, root / one, os.access(root / one, os.X_OK)) for one in names]
    total = sum(file.path.stat().st_size for file in files)
    if len(files) > MAX_FILES or total > max_bytes:
        raise UsageError(
            f"{len(files)} files of {in_mib(total)} would be brought from {root}, and at most "
            f"{MAX_FILES} files of {in_mib(max_bytes)} are: put the script into a folder of its own, "
            "and data sets on the machines themselves"
        )
    return files


def _select(program: Program, include: Iterable[Path]) -> tuple[list[str], list[str]]:
    """The names of the program's files, and of those that are links and stay here."""
    root = root_of(program)
    return _plain(root, [*_own(program, root), *_included(root, include)])


def offer_code(
    program: Program,
    run_dir: Path,
    *,
    include: Iterable[Path] = (),
    max_bytes: int = DEFAULT_MAX_BYTES,
    compare_samples: int = 0,
    is_offered: bool = True,
) -> Collected:
    """Keeps a copy of the program's code in the run folder, where the coordinator offers it.

    If it is not offered, others are only told what it runs in, to compare.
    """
    root = root_of(program)
    names, left_out = _select(program, include)
    if not is_offered:
        sources = {name: _read(root / name)[0] for name in names if name.endswith(".py")}
        told = CodeManifest(
            files=(), surroundings=surroundings_of(sources), compare_samples=compare_samples
        )
        told.check()
        write_code(run_dir, told, ())
        return Collected(told)
    contents, files = _gather(root, names, max_bytes=max_bytes)
    sources = {name: content for name, content in contents.items() if name.endswith(".py")}
    manifest = CodeManifest(
        files=files,
        script=None if program.script is None else program.script.name,
        module=program.module,
        arguments=program.arguments,
        folder=_below(Path.cwd(), root),
        surroundings=surroundings_of(sources),
        compare_samples=compare_samples,
    )
    manifest.check(max_bytes=max_bytes)
    write_code(run_dir, manifest, contents.values())
    return Collected(manifest, tuple(left_out), tuple(_missing(root, sources)))


def _missing(root: Path, sources: Mapping[str, bytes]) -> Iterator[str]:
    """Modules that lie in the folder and are imported by what is brought, but are not brought."""
    brought = {name.partition("/")[0] for name in sources}
    modules = {module for source in sources.values() for module in imports_of(source)}
    for module in sorted(modules):
        for name in (f"{module}.py", module):
            is_there = (root / name).is_file() or any((root / name).glob("*.py"))
            if is_there and name not in brought:
                yield name


def _gather(
    root: Path, names: Iterable[str], *, max_bytes: int
) -> tuple[dict[str, bytes], tuple[CodeFile, ...]]:
    """What is in the files, and how they are listed."""
    contents: dict[str, bytes] = {}
    files: list[CodeFile] = []
    total = 0
    for name in names:
        content, is_executable = _read(root / name)
        total += len(content)
        if total > max_bytes:
            raise UsageError(
                f"the code in {root} has more than {in_mib(max_bytes)} (at {name}, "
                f"{in_mib(len(content))}): raise the limit with --max-code MIB, take large files "
                "out of git, or give --no-code and copy the code to the others yourself"
            )
        contents[name] = content
        digest = hashlib.sha256(content).hexdigest()
        files.append(
            CodeFile(name=name, size=len(content), digest=digest, is_executable=is_executable)
        )
    return contents, tuple(files)


def _below(folder: Path, root: Path) -> str:
    """A folder as a path below the root; the root itself where it is elsewhere."""
    inside = folder.resolve().is_relative_to(root.resolve())
    text = folder.resolve().relative_to(root.resolve()).as_posix() if inside else "."
    return "" if text == "." else text


def _own(program: Program, root: Path) -> list[str]:
    """What belongs to the program without being named."""
    known = _known_to_git(root)
    if program.script is not None:
        return [program.script.name, *known]
    if known:
        return known
    top = str(program.module).partition(".")[0]
    if (root / top).is_dir():
        return [path.relative_to(root).as_posix() for path in sorted((root / top).rglob("*.py"))]
    return [f"{top}.py"] if (root / f"{top}.py").is_file() else []


def _known_to_git(root: Path) -> list[str]:
    """The tracked files below a folder; none where there is no git, or nothing is tracked."""
    try:
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--", "."],
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return sorted(os.fsdecode(one) for one in listed.split(b"\0") if one)


def _included(root: Path, include: Iterable[Path]) -> Iterator[str]:
    for given in include:
        for path in _named(root, given):
            if not path.is_relative_to(root.resolve()):
                raise UsageError(
                    f"--include {given} is not below {root}, the folder that is brought: move it there"
                )
            for one in sorted(path.rglob("*")) if path.is_dir() else [path]:
                below = one.relative_to(root.resolve())
                if not set(below.parts) & set(_SKIPPED) and (one.is_symlink() or one.is_file()):
                    yield below.as_posix()


def _named(root: Path, given: Path) -> list[Path]:
    """A file or folder here, or below the root; else what a pattern matches there."""
    path = (root / given).resolve() if not given.exists() else given.resolve()
    is_pattern = not (path.exists() or given.is_absolute() or ".." in given.parts)
    found = sorted(root.resolve().glob(str(given))) if is_pattern else [path]
    if not found or not all(one.exists() for one in found):
        raise UsageError(f"--include {given}: there is no such file or folder")
    return found


def _plain(root: Path, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Plain files, each once; and those that are links, or lie behind one."""
    plain, left_out = [], []
    for name in dict.fromkeys(names):
        path = root / name
        if not os.path.lexists(path):
            continue  # git knows it, and somebody has removed it
        behind = [root.joinpath(*Path(name).parts[:end]) for end in range(1, name.count("/") + 2)]
        if any(one.is_symlink() for one in behind):
            left_out.append(name)
        elif path.is_file():
            check_name(name)
            plain.append(name)
    return plain, left_out


def _read(path: Path) -> tuple[bytes, bool]:
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            return file.read(), bool(os.fstat(file.fileno()).st_mode & 0o100)
    except OSError as error:
        raise UsageError(f"cannot read {path}, to bring it to others: {error.strerror}") from error
