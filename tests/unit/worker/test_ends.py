# SPDX-License-Identifier: Apache-2.0
"""Scripts end by exceptions of their own that have to do with who takes part in the job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gangline.spec.errors import UsageError
from gangline.worker import api
from gangline.worker.ending import explain_size


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes with which the process is ended."""
    found: list[int] = []
    monkeypatch.setattr(api, "shutdown", lambda: None)
    monkeypatch.setattr(api.os, "_exit", found.append)
    return found


def end_with(error: Exception, monkeypatch: pytest.MonkeyPatch, *, has_left: bool) -> None:
    training: Any = SimpleNamespace(has_left=has_left, sizes=None)
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


@pytest.mark.parametrize(
    ("error", "sizes", "is_explained"),
    [
        (RuntimeError("Input batch size 4 doesn't match hidden0 batch size 3"), (3, 4), True),
        (RuntimeError("something else"), None, False),
        (UsageError("ours, and a ValueError"), (3, 4), False),
        (torch.OutOfMemoryError("out of memory"), (3, 4), False),
        (KeyError("x"), (3, 4), False),
        (None, (3, 4), False),
    ],
    ids=repr,
)
def test_an_error_in_the_first_batch_of_another_size_is_explained(
    error: Exception | None, sizes: tuple[int, int] | None, is_explained: bool
) -> None:
    training: Any = SimpleNamespace(sizes=sizes)
    note = explain_size(error, training)
    assert bool(note) == is_explained
    assert ("a batch of 4 samples, after one of 3" in note) == is_explained
