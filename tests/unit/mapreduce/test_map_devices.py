# SPDX-License-Identifier: Apache-2.0
"""`gangline.map` on devices of several kinds: each has a queue, and who is idle helps the others."""

from __future__ import annotations

import threading

import pytest

import gangline
from gangline.mapreduce.devices import kinds_of, named_devices
from gangline.spec.errors import FunctionError, UsageError

KINDS = {"fast": 1, "cpu": 2}


def told(rows, *, device):
    return [(row, device) for row in rows]


@pytest.mark.parametrize("where", ["threads", "processes"])
@pytest.mark.parametrize("scheme", ["SS", "GSS", None])
def test_the_function_is_told_what_it_computes_on(where, scheme) -> None:
    function = told if where == "threads" else (lambda rows, device: told(rows, device=device))
    made = gangline.map(
        function, range(60), devices=KINDS, scheme=scheme, where=where, details=True
    )
    assert [row for row, _ in made.value] == list(range(60))
    assert {device for _, device in made.value} <= {"fast:0", "cpu"}
    assert made.devices == ("fast:0", "cpu", "cpu")
    assert (made.workers, made.layout) == (3, "PERGROUP")


def test_each_kind_has_a_queue_and_the_fast_one_takes_what_the_others_leave() -> None:
    """The processors hold one row each until the other device has done all the rest."""
    rest, first = threading.Event(), {}
    count = [0]

    def work(rows, *, device):
        first.setdefault(device, rows[0])
        if device == "cpu":
            assert rest.wait(20)
        else:
            count[0] += len(rows)
            if count[0] == 58:
                rest.set()
        return list(rows)

    # Somebody who begins late finds its queue as it was: nobody steals from it before that is tried.
    made = gangline.map(work, range(60), devices=KINDS, scheme="SS", details=True)
    assert made.value == list(range(60))
    assert sum(made.rows_of) == 60
    assert first["fast:0"] == 0
    assert made.rows_of[0] >= 58


def test_without_rows_the_function_is_told_a_device_all_the_same() -> None:
    assert gangline.map(told, [], devices=KINDS) == []


def test_what_a_function_raises_on_a_device_names_the_rows() -> None:
    def fail(rows, *, device):
        raise ArithmeticError(device)

    with pytest.raises(FunctionError, match=r"fail failed for row .*ArithmeticError: (fast:0|cpu)"):
        gangline.map(fail, range(9), devices=KINDS, scheme="SS")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"devices": {}}, "give how many workers each kind"),
        ({"devices": {"cpu": 0}}, "give how many workers each kind"),
        ({"devices": {"cuda:0": 1}}, "give how many workers each kind"),
        ({"devices": "some"}, "give how many workers each kind"),
        ({"devices": KINDS, "workers": 2}, "devices says how many workers there are"),
        ({"devices": KINDS, "layout": "PERCPU"}, "each kind of device has one queue"),
    ],
)
def test_what_means_nothing_is_refused(options, said) -> None:
    with pytest.raises(UsageError, match=said):
        gangline.map(told, range(9), **options)


def test_a_function_that_cannot_be_told_is_refused() -> None:
    with pytest.raises(UsageError, match=r"takes no device; write `def function"):
        gangline.map(lambda rows: rows, range(9), devices=KINDS)


def test_all_devices_are_gpus_and_the_processors_beside_them(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    given = {"workers": None, "layout": "CENTRALIZED"}
    assert named_devices("all", processors=4, **given) == ("cuda:0", "cuda:1", "cpu", "cpu")
    assert kinds_of(("cuda:0", "cuda:1", "cpu", "cpu")) == (0, 0, 1, 1)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert named_devices("all", processors=4, **given) == ("cpu",) * 4
