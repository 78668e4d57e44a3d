# SPDX-License-Identifier: Apache-2.0
"""The pure packages touch nothing outside their arguments: read from their source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gangline

ROOT = Path(gangline.__file__).parent
PURE = ("planning", "control", "scheduling")
PURE_FILES = ("paramserver/clocks.py", "spec/consistency.py")
FORBIDDEN_MODULES = {
    *("asyncio", "builtins", "concurrent", "ctypes", "datetime", "fcntl", "glob", "importlib"),
    *("io", "logging", "mmap", "multiprocessing", "os", "pathlib", "platform", "psutil", "queue"),
    *("random", "requests", "rich", "secrets", "selectors", "shutil", "signal", "socket", "sys"),
    *("subprocess", "tempfile", "threading", "time", "torch", "typer", "uuid", "warnings"),
}
FORBIDDEN_CALLS = {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}
SEEDED_RANDOM = {"BitGenerator", "Generator", "PCG64", "Philox", "SeedSequence", "default_rng"}


def impurities(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names):
                modules = [f"{module}.{alias.name}" for alias in names]
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                found.append(f"line {node.lineno}: calls {name}()")
                continue
            case ast.Call(func=ast.Attribute(attr="default_rng"), args=[], keywords=[]):
                found.append(f"line {node.lineno}: an unseeded generator")
                continue
            case ast.Attribute(value=ast.Attribute(attr="random"), attr=name):
                if name not in SEEDED_RANDOM:
                    found.append(f"line {node.lineno}: uses the global numpy.random.{name}")
                continue
            case ast.Global():
                found.append(f"line {node.lineno}: changes a global")
                continue
            case _:
                continue
        found += [
            f"line {node.lineno}: imports {module}"
            for module in modules
            if module.split(".")[0] in FORBIDDEN_MODULES or module.startswith("numpy.random")
        ]
    return found


def pure_files() -> list[Path]:
    found = [path for package in PURE for path in (ROOT / package).rglob("*.py")]
    return sorted([*found, *(ROOT / name for name in PURE_FILES)])


@pytest.mark.parametrize("path", pure_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_uses_nothing_but_its_arguments(path):
    assert impurities(path.read_text()) == []


def test_the_pure_packages_are_there():
    names = {path.relative_to(ROOT).parts[0] for path in pure_files()}
    assert set(PURE) <= names


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from datetime import datetime",
        "from pathlib import Path",
        "import numpy as np\nnp.random.seed(0)",
        "import numpy as np\nx = np.random.rand(3)",
        "import numpy as np\nrng = np.random.default_rng()",
        "from numpy.random import rand",
        "from numpy import random",
        "data = open('file').read()",
        "print('hello')",
        "def f():\n    global x\n    x = 1",
    ],
)
def test_an_impurity_is_found(source):
    assert len(impurities(source)) == 1


def test_a_seeded_generator_is_allowed():
    source = "import numpy as np\ndef f(seed, rng: np.random.Generator):\n"
    assert impurities(source + "    return np.random.default_rng(seed)") == []
