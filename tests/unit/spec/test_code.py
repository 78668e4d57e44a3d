# SPDX-License-Identifier: Apache-2.0
"""Lists of code: what leads out of a folder, or is more than agreed on, is refused by name."""

from __future__ import annotations

import os.path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.spec.errors import UsageError
from gangline.spec.machines.code import MAX_FILES, CodeFile, CodeManifest, check_name

DIGEST = "0" * 64


def file(name: str, **changes: Any) -> CodeFile:
    return CodeFile(**{"name": name, "size": 3, "digest": DIGEST, **changes})


def code(*files: CodeFile, **changes: Any) -> CodeManifest:
    return CodeManifest(**{"files": (file("train.py"), *files), "script": "train.py", **changes})


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/.", "..", ".", ""),
        *("a\\..\\x", "C:\\x", "a\nb", "a\x1b[2Jb", "a\0b", "a\u202eb"),
        *("x" * 256, "/".join(["x" * 200] * 6), "/".join(["x"] * 33), "a\u2028b"),
    ],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="the code's file"):
        code(file(name)).check()


@given(st.text(max_size=40))
def test_whatever_name_is_let_through_stays_in_its_folder(name: str) -> None:
    try:
        check_name(name)
    except UsageError:
        return
    assert os.path.normpath(os.path.join("/folder", name)) == f"/folder/{name}"


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (code(file("a.py"), file("a.py")), "'a.py' is there twice"),
        (code(file("a"), file("a/b")), "'a/b' is a folder, too"),
        (code(file("a/b"), file("a")), "'a' is a folder, too"),
        (code(file("a", size=-1)), "'a' is said to have -1 bytes"),
        (code(file("a", digest="x")), "'a' comes with no SHA-256"),
        (code(file("data", size=1 << 30)), "1024.0 MiB, more than 64.0 MiB .*data.*--max-code"),
        (code(script="other.py"), "'other.py' is none of its files"),
        (code(script=None), "no command"),
        (code(module="m"), "no command"),
        (code(script=None, module="a b"), "not the name of a module"),
        (code(folder="../x"), "outside"),
        (code(folder="train.py/x"), "is a file, too"),
        (code(arguments=("a\0",)), "null byte"),
        (code(compare_samples=65), "0 to 64 can be"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(manifest: CodeManifest, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        manifest.check()


def test_too_many_files_are_refused() -> None:
    with pytest.raises(UsageError, match="more than 10000"):
        code(*(file(f"{number}") for number in range(MAX_FILES))).check()


def test_a_fingerprint_goes_by_what_is_run() -> None:
    one, other = file("a.py"), file("b.py")
    assert code(one, other).fingerprint == code(other, one).fingerprint
    changed = [
        code(one),
        code(one, file("b.py", digest="1" * 64)),
        code(one, file("b.py", is_executable=True)),
        code(one, other, arguments=("--rm",)),
    ]
    assert len({code(one, other).fingerprint, *(each.fingerprint for each in changed)}) == 5
    document = msgspec.json.encode(code(one, other))
    assert msgspec.json.decode(document, type=CodeManifest) == code(one, other)
