# SPDX-License-Identifier: Apache-2.0
"""A worker has left, and its loop asks for a batch by `next`: that is how scripts end then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gangline.worker import api


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes with which the process is ended."""
    found: list[int] = []
    monkeypatch.setattr(api, "shutdown", lambda: None)
    monkeypatch.setattr(api.os, "_exit", found.append)
    return found


def end_with(error: Exception, monkeypatch: pytest.MonkeyPatch, *, has_left: bool) -> None:
    training: Any = SimpleNamespace(has_left=has_left)
    monkeypatch.setattr(api._job, "training", training)
    try:
        raise error
    except Exception:
        api._end()


def wrapped() -> RuntimeError:
    error = RuntimeError("generator raised StopIteration")
    error.__cause__ = StopIteration()
    return error


@pytest.mark.parametrize("error", [StopIteration(), wrapped()], ids=repr)
def test_a_worker_that_has_left_and_finds_no_batch_ends_well(
    error: Exception,
    codes: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    end_with(error, monkeypatch, has_left=True)
    assert codes == [0]
    assert "this worker has left the job, as it was asked to" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "has_left"), [(StopIteration(), False), (KeyError("x"), True)])
def test_other_errors_are_left_to_python(
    error: Exception, has_left: bool, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    end_with(error, monkeypatch, has_left=has_left)
    assert codes == []
