# SPDX-License-Identifier: Apache-2.0
"""What is installed is pinned, with hashes; and an audit that could not be done says so."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def name_of(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return {name_of(name): version for name, _, version in (one.partition("==") for one in lines)}


def hashed() -> dict[str, tuple[str, list[str]]]:
    """Of each package in the locked file, its version and its hashes."""
    text = (ROOT / "constraints-hashed.txt").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pin, *rest = line.split()
            name, _, version = pin.partition("==")
            found[name_of(name)] = (version, re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
            assert rest
    return found


def test_the_locked_file_has_the_pinned_versions_with_hashes() -> None:
    locked = hashed()
    for name, version in pins().items():
        assert name in locked, "run `make lock`"
        assert locked[name][0].partition("+")[0] == version, f"{name}: run `make lock`"
    assert all(hashes for _, hashes in locked.values())


@pytest.fixture
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "tools" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (OSError("unreachable"), 3, "cannot be asked"),
        (b"<html>a mirror</html>", 3, "cannot be asked"),
        (b'{"info": {}}', 3, "says nothing about vulnerabilities"),
        (b'{"vulnerabilities": []}', 0, ""),
    ],
)
def test_an_audit_that_cannot_be_done_is_no_audit(
    audit: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    answer: bytes | OSError,
    code: int,
    said: str,
) -> None:
    def urlopen(url: str, timeout: float) -> io.BytesIO:
        if isinstance(answer, OSError):
            raise answer
        return io.BytesIO(answer)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    (tmp_path / "pins.txt").write_text("one==1\ntwo==2\n")
    assert audit.main("true", str(tmp_path / "pins.txt")) == code
    assert said in capsys.readouterr().err
    if code == 0:
        assert audit.main("false", str(tmp_path / "pins.txt")) == 1
    assert "audit" not in sys.modules
