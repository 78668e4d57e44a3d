# SPDX-License-Identifier: Apache-2.0
"""What the workers run: a script, or a module, checked before several workers fail at it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from gangline.spec.errors import UsageError


class Program(NamedTuple):
    """What every worker runs."""

    name: str
    arguments: tuple[str, ...]
    script: Path | None = None
    module: str | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """What python is given."""
        what = ("-m", self.module) if self.module is not None else (str(self.script),)
        return (*what, *self.arguments)


def find_program(
    script: Path | None, arguments: list[str] | None, module: str | None, *, verb: str
) -> Program:
    """What is to be run, checked before several workers fail at it."""
    rest = tuple(arguments or ())
    if module is not None:
        check_module(module)
        # What follows a module is its own: the command line took the first of it for a script.
        first = () if script is None else (str(script),)
        return Program(module.rpartition(".")[2], (*first, *rest), module=module)
    if script is None:
        raise UsageError(
            f"nothing to run: give a script, `gangline {verb} train.py`, or a module, "
            f"`gangline {verb} -m package.module`"
        )
    check_script(script)
    return Program(script.stem, rest, script=script.resolve())


def check_module(module: str) -> None:
    """Refuses a module that python would not find, or could not run. Nothing is imported."""
    if module.endswith(".py") or not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(
            f"-m {module}: this is not the name of a module; write it with dots and without .py, "
            "such as -m package.train"
        )
    path: list[str] | None = None
    known = ""
    for part in module.split("."):
        known = f"{known}.{part}" if known else part
        spec = _find(known, path)
        if spec is None:
            raise UsageError(
                f"-m {module}: there is no module {known} (looked in {Path.cwd()} and in python's "
                "path); run it from the folder that holds the package, or install it"
            )
        places = spec.submodule_search_locations
        path = None if places is None else list(places)
        if path is None and known != module:
            raise UsageError(f"-m {module}: {known} is a module, and no package that has others")
    if path is not None and _find(f"{module}.__main__", path) is None:
        raise UsageError(
            f"-m {module}: {module} is a package without __main__.py, which cannot be run; name a "
            "module in it"
        )


def _find(name: str, path: list[str] | None) -> Any:
    """Where python would find a module, as a worker in this folder; None: nowhere."""
    before = list(sys.path)
    if path is None:
        sys.path.insert(0, str(Path.cwd()))
    try:
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    finally:
        sys.path[:] = before
    return None


def check_script(script: Path) -> None:
    """Refuses what python could not run, before several workers fail at it."""
    if script.is_dir():
        raise UsageError(f"{script} is a folder; give the python script in it")
    try:
        source = script.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"there is no script {script} (looked in {Path.cwd()})") from None
    except OSError as error:
        raise UsageError(f"cannot read the script {script}: {error.strerror}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, str(script), "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise UsageError(f"{script}{place} is not python: {error.msg}") from error
    except ValueError as error:  # what some versions say of a file with null bytes
        raise UsageError(f"{script} is not python: {error}") from error
