# SPDX-License-Identifier: Apache-2.0
"""`gangline.log`: what it takes, what it weighs by, and what of it is written."""

from __future__ import annotations

import fractions
import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from runtime_jobs import alone as alone
from runtime_jobs import parts

import gangline
from gangline.eventlog import read_run
from gangline.spec.errors import UsageError
from gangline.spec.event import Logged
from gangline.worker import api
from gangline.worker.telling import logbook

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("alone")


def trained(folder: Path, log: Any, *, batches: int = 3, **options: Any) -> list[Logged]:
    """What is in the log after an epoch whose every batch calls `log(batch number, loss)`."""
    api.shutdown()
    gangline.init(run_dir=str(folder))
    model, optimizer, loader = gangline.prepare(*parts(batches * 4), **options)
    for number, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        log(number, loss)
        if gangline.is_update():
            optimizer.step()
            optimizer.zero_grad()
    api.shutdown()
    return [event for event in read_run(folder) if isinstance(event, Logged)]


def test_numbers_and_tensors_are_written_with_the_step_and_its_samples(tmp_path: Path) -> None:
    losses: list[float] = []

    def log(number: int, loss: torch.Tensor) -> None:
        losses.append(loss.item())
        gangline.log(loss=loss, number=number, ratio=np.float32(0.5), flag=True)

    events = trained(tmp_path, log)
    assert [(e.step, e.epoch, e.samples, e.worker) for e in events] == [
        (step, 0, 4, 0) for step in range(3)
    ]
    assert [e.values["loss"] for e in events] == pytest.approx(losses)
    assert events[2].values == {
        "loss": events[2].values["loss"],
        "number": 2.0,
        "ratio": 0.5,
        "flag": 1.0,
    }


def test_the_parts_of_a_window_are_one_mean_by_their_samples(tmp_path: Path) -> None:
    events = trained(
        tmp_path, lambda number, loss: gangline.log(loss=number), batches=2, accumulate=3
    )
    # Windows of 4 samples in parts of 2, 1 and 1.
    assert [(e.samples, e.values) for e in events] == [
        (4, {"loss": pytest.approx((2 * 0 + 1 + 2) / 4)}),
        (4, {"loss": pytest.approx((2 * 3 + 4 + 5) / 4)}),
    ]


def test_what_is_logged_in_some_parts_only_speaks_for_their_samples(tmp_path: Path) -> None:
    def log(number: int, loss: torch.Tensor) -> None:
        gangline.log(loss=1.0)
        if gangline.is_update():
            gangline.log(last=7.0)

    events = trained(tmp_path, log, batches=1, accumulate=3)
    assert sorted((e.samples, *e.values.items()) for e in events) == [
        (1, ("last", 7.0)),
        (4, ("loss", 1.0)),
    ]


def test_a_name_that_is_given_again_in_a_batch_is_overwritten(tmp_path: Path) -> None:
    def log(number: int, loss: torch.Tensor) -> None:
        gangline.log(loss=1.0, other=3.0)
        gangline.log(loss=2.0)

    assert trained(tmp_path, log, batches=1)[0].values == {"loss": 2.0, "other": 3.0}


def test_what_is_not_finite_is_null_and_the_log_can_be_read(tmp_path: Path) -> None:
    (event,) = trained(
        tmp_path, lambda number, loss: gangline.log(loss=math.nan, up=math.inf, one=1), batches=1
    )
    assert event.values == {"loss": None, "up": None, "one": 1.0}


def test_a_tensor_that_is_added_to_later_is_logged_as_it_was(tmp_path: Path) -> None:
    total = torch.zeros(())

    def log(number: int, loss: torch.Tensor) -> None:
        gangline.log(total=total)
        total.add_(1.0)

    assert [e.values["total"] for e in trained(tmp_path, log)] == [0.0, 1.0, 2.0]


def test_a_number_that_is_still_on_its_device_is_told_a_step_later_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pending(name: str, value: torch.Tensor) -> logbook._Pending:
        return logbook._Pending(value.detach().clone(), None)

    monkeypatch.setattr(logbook, "_taken", pending)
    told: list[tuple[int, int]] = []
    plain = logbook.LogBook._tell_step

    def tell(book: logbook.LogBook, step: logbook._Step) -> None:
        told.append((step.step, len(losses)))
        plain(book, step)

    monkeypatch.setattr(logbook.LogBook, "_tell_step", tell)
    losses: list[float] = []

    def log(number: int, loss: torch.Tensor) -> None:
        losses.append(loss.item())
        gangline.log(loss=loss)

    events = trained(tmp_path, log)
    assert told == [(0, 2), (1, 3), (2, 3)], "not in its own step, but at the end"
    assert [event.values["loss"] for event in events] == pytest.approx(losses)


def test_only_so_many_names_are_taken_in_all_calls_of_a_step(tmp_path: Path) -> None:
    def log(number: int, loss: torch.Tensor) -> None:
        gangline.log(**{f"a{i}": 1.0 for i in range(40)})
        with pytest.raises(UsageError, match="80 names in one step: it takes up to 64, in all"):
            gangline.log(**{f"b{i}": 1.0 for i in range(40)})

    (event,) = trained(tmp_path, log, batches=1)
    assert len(event.values) == 40, "what was refused is not kept"


def test_only_so_many_names_are_taken_in_all_parts_of_a_step(tmp_path: Path) -> None:
    def log(number: int, loss: torch.Tensor) -> None:
        gangline.log(**{f"{number}_{i}": 1.0 for i in range(40)})

    with pytest.raises(UsageError, match="80 names in one step"):
        trained(tmp_path, log, batches=1, accumulate=3)


def test_what_cannot_be_read_later_is_left_out_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = logbook._taken
    unreadable = logbook._Pending(torch.ones((), device="meta"), None)
    monkeypatch.setattr(
        logbook, "_taken", lambda name, value: unreadable if name == "bad" else plain(name, value)
    )
    with caplog.at_level(logging.WARNING, "gangline.worker"):
        events = trained(tmp_path, lambda number, loss: gangline.log(bad=loss, good=1.0))
    assert [event.values for event in events] == [{"good": 1.0}] * 3
    assert [one.args[0] for one in caplog.records if isinstance(one.args, tuple)] == ["bad"]


def test_between_epochs_the_last_step_is_named(tmp_path: Path) -> None:
    api.shutdown()
    gangline.init(run_dir=str(tmp_path))
    model, optimizer, loader = gangline.prepare(*parts(8))
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    gangline.log(accuracy=0.9)
    api.shutdown()
    (event,) = (one for one in read_run(tmp_path) if isinstance(one, Logged))
    assert (event.step, event.samples, event.view, event.values) == (1, 1, -1, {"accuracy": 0.9})


WRONG = [
    ({}, r"log\(\) was given nothing: name what to log, as in log\(loss=loss\)"),
    ({"loss": torch.ones(3)}, r"takes one number.*shape \(3,\).*log\(loss=loss\.mean\(\)\)"),
    ({"loss": torch.ones(1, dtype=torch.complex64)}, r"takes one number.*complex64"),
    ({"loss": "1.0"}, r"gangline\.log\(loss=…\) takes a number.*not str"),
    ({"loss": None}, "not NoneType"),
    ({"loss": 1j}, "not complex"),
    ({f"n{i}": i for i in range(65)}, "65 names in one step: it takes up to 64"),
    ({"n" * 101: 1.0}, "of 101 characters: a name has 1 to 100 characters that can be printed"),
    ({"": 1.0}, "the name '' of 0 characters"),
    ({"\ud800": 1.0}, r"the name '\\ud800' of 1 characters"),
    ({"a\x1b[31m\n": 1.0}, r"the name 'a\\x1b\[31m\\n'"),
    ({"loss": torch.ones((), device="meta")}, "a meta tensor, which has no number"),
    ({"loss": 10**400}, "too large for a float"),
    ({"loss": fractions.Fraction(10**400)}, "too large for a float"),
]


@pytest.mark.parametrize(("values", "match"), WRONG)
def test_what_is_no_number_is_named(values: dict[str, Any], match: str) -> None:
    gangline.prepare(*parts())
    with pytest.raises(UsageError, match=match):
        gangline.log(**values)


def test_it_asks_for_prepare() -> None:
    with pytest.raises(UsageError, match=r"before prepare\(\)"):
        gangline.log(loss=1.0)
