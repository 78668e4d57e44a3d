# SPDX-License-Identifier: Apache-2.0
"""A coordinator's inputs are recorded, and put through it once more."""

from __future__ import annotations

import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.coordinator.coordinator import Coordinator
from gangline.coordinator.inputs import (
    Connected,
    Disconnected,
    Input,
    LeaveAsked,
    Ordered,
    ReplanAsked,
    Said,
    SeenBusy,
    StepsReported,
    SurveyAsked,
    SyncAsked,
    Tick,
)
from gangline.coordinator.kept.recording import (
    Opening,
    framed,
    opening_of,
    read_recording,
    restored,
)
from gangline.coordinator.outputs import Admitted, Keep, Refusal, Send, Stumbled, Write
from gangline.coordinator.reports.bunch import Bunch, packed
from gangline.coordinator.server.input_log import FOLDER, InputLog, recorded_files
from gangline.coordinator.settings import Settings
from gangline.protocol.lifeline import Depart, Dissolve, ProcessEnded
from gangline.protocol.messages import (
    PROTOCOL_VERSION,
    Failed,
    Goodbye,
    Hello,
    LeaseAsked,
    Leaving,
    Measured,
    Ping,
    Ready,
)
from gangline.protocol.status import ReplanRequest
from gangline.simulation.recorded import replay
from gangline.spec.errors import LogError
from gangline.spec.exchange.address import WireAddress
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = 3


def hello(worker: int, pid: int = 100) -> Hello:
    return Hello(
        protocol=PROTOCOL_VERSION,
        run="r",
        worker=worker,
        host="here",
        pid=pid + worker,
        address=WireAddress(host="127.0.0.1", port=7000 + worker, host_id="a"),
    )


def ready(sync: str = "full") -> Ready:
    return Ready(
        global_batch=12,
        minimum=1,
        allocation="balanced",
        shares=None,
        max_samples=None,
        seed=5,
        sync=parse_sync(sync),
    )


BIG = msgspec.structs.replace(ready(), global_batch=4096)


def begin(sync: str = "full", **options: Any) -> Coordinator:
    return Coordinator(Settings(run="r", expected_workers=WORKERS), now=0.0, **options)


def beginning(sync: str = "full") -> list[Input]:
    """What makes a job of three workers begin."""
    return [
        *(Connected(hello=hello(worker)) for worker in range(WORKERS)),
        *(Said(worker=worker, message=ready(sync)) for worker in range(WORKERS)),
    ]


def step(worker: int, number: int, team: int = -1) -> Input:
    measured = Measured(step=number, view=0, samples=4, compute_s=0.1 + worker / 100, team=team)
    return Said(worker=worker, message=measured)


def steps(rows: list[tuple[int, int, float]], number: int, view: int, team: int) -> StepsReported:
    """What several say of one step: who, how many samples, how long a hop takes (0: none says)."""
    workers, samples, hop_s = (np.array(column) for column in zip(*rows, strict=True))
    with_hops = {"hop_peers": (workers + 1) % WORKERS, "hop_s": hop_s} if hop_s.all() else {}
    return packed(
        step=number,
        view=view,
        workers=workers,
        samples=samples,
        compute_s=0.1 + workers / 100,
        exchange_s=0.012 - samples / 1000,
        other_s=0.001,
        team=team,
        **with_hops,
    )


WORKER = st.integers(0, WORKERS)
ROWS = st.lists(
    st.tuples(WORKER, st.integers(0, 14), st.sampled_from([0.0, 0.1, 0.2])), min_size=1, max_size=4
)
EVERYBODY = st.just([(worker, 4, 0.1) for worker in range(WORKERS)])
STEPS = st.builds(
    steps,
    st.one_of(EVERYBODY, ROWS),
    st.sampled_from([0, 1, 2, 3, 4, 5, 6, 5000]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([-1, -1, 1]),
)
INPUTS = st.one_of(
    st.just(Tick()),
    st.builds(lambda w, p: Connected(hello=hello(w, p)), WORKER, st.sampled_from([100, 900])),
    st.builds(lambda w: Disconnected(worker=w), WORKER),
    st.builds(step, WORKER, st.integers(0, 6), st.integers(-1, 2)),
    STEPS,
    st.builds(
        lambda w, s: Said(worker=w, message=ready(s)), WORKER, st.sampled_from(["full", "none"])
    ),
    st.builds(lambda w: Said(worker=w, message=Ping(sent_s=1.0, waiting_s=2.5)), WORKER),
    st.builds(
        lambda w, g: Said(worker=w, message=Failed(group=g, error="lost", step=0)),
        WORKER,
        st.integers(-2, 2),
    ),
    st.builds(lambda w: Said(worker=w, message=Leaving()), WORKER),
    st.builds(lambda w: Said(worker=w, message=Goodbye(reason="done")), WORKER),
    st.builds(
        lambda w, t: Said(worker=w, message=LeaseAsked(epoch=0, number=0, length=40, team=t)),
        WORKER,
        st.integers(-1, 2),
    ),
    st.builds(lambda w: SeenBusy(worker=w, pid=100 + w), WORKER),
    st.builds(
        lambda w, f: Ordered(order=ProcessEnded(worker=w, has_failed=f)), WORKER, st.booleans()
    ),
    st.builds(lambda w: LeaveAsked(worker=w), WORKER),
    st.builds(lambda s: SyncAsked(sync=s), st.sampled_from(["full", "none", "auto", "nonsense"])),
    st.just(ReplanAsked(request=ReplanRequest(is_auto=True))),
    st.just(SurveyAsked()),
    st.just(Ordered(order=Dissolve(reason="enough", own=(0,)))),
    st.just(Ordered(order=Depart())),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sync=st.sampled_from(["full", "none", "percentage(0.5)"]),
    has_begun=st.booleans(),
    later=st.lists(st.tuples(INPUTS, st.floats(0.0, 3.0)), max_size=40),
    cut=st.integers(0, 45),
)
def test_whatever_happens_nothing_raises_and_a_snapshot_goes_on_alike(
    sync: str, has_begun: bool, later: list[tuple[Input, float]], cut: int
) -> None:
    coordinator, now, copy = begin(), 1.0, None
    given = [(one, 0.01) for one in beginning(sync)] if has_begun else []
    for number, (one, after_s) in enumerate([*given, *later]):
        if number == cut:
            copy = restored(opening_of(coordinator, run="r", version="1"), path="p")
        now += after_s
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Input)
        assert decoded == one, "an input can be written down"
        outputs = coordinator.handle(one, now)
        assert not [output for output in outputs if isinstance(output, Stumbled)], outputs
        if copy is not None:
            assert copy.handle(one, now) == outputs
        coordinator.status()
        coordinator.standing(now)


MOSTLY_STEPS = st.one_of(*[STEPS] * 20, INPUTS)


def watched(coordinator: Coordinator) -> dict[str, Any]:
    """What was seen of the members."""
    seen = vars(coordinator._job._root.mind.lookout.watch)
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in seen.items()
        if name != "_ranks"
    }


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sync=st.sampled_from(["full", "full", "none"]),
    later=st.lists(st.tuples(MOSTLY_STEPS, st.floats(0.0, 3.0)), max_size=40),
    is_looked_at=st.booleans(),
)
def test_what_many_report_at_once_comes_to_what_they_report_one_by_one(
    sync: str, later: list[tuple[Input, float]], is_looked_at: bool
) -> None:
    together, apart, now = begin(), begin(), 1.0
    for one, after_s in [*((one, 0.01) for one in beginning(sync)), *later]:
        now += after_s
        singles = Bunch.of(one).singles() if isinstance(one, StepsReported) else [one]
        outputs = [output for single in singles for output in apart.handle(single, now)]
        assert together.handle(one, now) == outputs
        assert watched(together) == watched(apart)
        if is_looked_at:
            assert together.standing(now) == apart.standing(now)
    assert together.status() == apart.status()
    assert together.standing(now) == apart.standing(now)


def test_what_many_report_is_taken_at_once_where_all_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = begin()
    for one in beginning():
        coordinator.handle(one, 1.0)
    monkeypatch.setattr(Bunch, "singles", None)
    everybody = [(worker, 4, 0.1) for worker in range(WORKERS)]
    for number in range(20):
        assert not coordinator.handle(steps(everybody, number, 0, -1), 2.0 + number)
    assert coordinator.status().step == 19
    assert {(one.state, one.step, one.samples) for one in coordinator.status().workers} == {
        ("training", 19, 4)
    }


@pytest.mark.parametrize("column", ["samples", "compute_s", "exchange_s", "hop_s"])
def test_columns_that_do_not_fit_together_are_refused(column: str) -> None:
    whole = steps([(0, 4, 0.1), (1, 4, 0.1)], 0, 0, -1)
    torn = msgspec.structs.replace(whole, **{column: getattr(whole, column)[:-3]})
    (refusal,) = begin().handle(torn, 1.0)
    assert isinstance(refusal, Refusal)
    assert f"13 bytes of {column}, and 16 of workers" in refusal.reason


def test_thousands_found_a_job_in_time_that_grows_with_their_number() -> None:
    def calls(count: int) -> int:
        settings = Settings(run="r", expected_workers=count, reserved=count)
        coordinator = Coordinator(settings, now=0.0)
        seen = 0

        def count_calls(*_: Any) -> None:
            nonlocal seen
            seen += 1

        sys.setprofile(count_calls)
        try:
            for worker in range(count):
                coordinator.handle(Connected(hello=hello(worker)), 1.0)
            for worker in range(count):
                coordinator.handle(Said(worker=worker, message=BIG), 1.0)
        finally:
            sys.setprofile(None)
        return seen

    assert calls(400) < 2.5 * calls(200)


def test_what_must_be_kept_comes_before_anybody_is_told() -> None:
    coordinator = begin()
    for one in beginning():
        outputs = coordinator.handle(one, 1.0)
    kinds = [type(output) for output in outputs]
    assert {Keep, Write, Send} <= set(kinds)
    assert kinds.index(Send) > max(i for i, kind in enumerate(kinds) if kind is Keep)


def test_an_input_that_cannot_be_is_refused_with_a_reason() -> None:
    coordinator = begin()
    (refusal,) = coordinator.handle(LeaveAsked(worker=4), 1.0)
    assert isinstance(refusal, Refusal)
    assert "worker 4 does not take part" in refusal.reason
    stranger = msgspec.structs.replace(hello(0), run="another")
    (refusal,) = coordinator.handle(Connected(hello=stranger), 1.0)
    assert isinstance(refusal, Refusal)


def test_an_error_of_ours_is_told_with_its_input_and_the_job_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = begin()
    for one in beginning():
        coordinator.handle(one, 1.0)

    def break_down(*args: Any) -> Any:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(coordinator._job, "receive", break_down)
        (stumbled,) = coordinator.handle(step(0, 0), 2.0)
    assert isinstance(stumbled, Stumbled)
    assert stumbled.error == "RuntimeError('a bug')"
    assert "break_down" in stumbled.trace
    outputs = coordinator.handle(Said(worker=0, message=Ping(sent_s=3.0)), 2.1)
    assert [type(output) for output in outputs] == [Send]


def record(folder: Path, given: list[Input], **bounds: Any) -> Coordinator:
    coordinator = begin()
    log = InputLog(folder, coordinator, run="r", **bounds)
    for number, one in enumerate(given):
        log.note(one, coordinator.handle(one, float(number)), float(number))
    log.close()
    return coordinator


def read(folder: Path) -> list[tuple[str, bytes]]:
    return [(str(path), path.read_bytes()) for path in recorded_files(folder)]


A_RUN = [*beginning("none"), *(step(w, n) for n in range(30) for w in range(WORKERS)), Tick()]


def test_a_recording_replays_to_the_same_outputs(tmp_path: Path) -> None:
    record(tmp_path, A_RUN)
    found = replay(read(tmp_path))
    assert (found.files, found.differences, found.stumbles) == (1, [], [])
    assert found.inputs == {"Connected": 3, "Said": 93, "Tick": 1}
    assert found.outputs["Admitted"] == 3


def test_files_are_bounded_and_each_can_be_replayed_alone(tmp_path: Path) -> None:
    record(tmp_path, [*A_RUN, *[Tick()] * 900], max_file_bytes=1_000, max_files=2)
    files = recorded_files(tmp_path)
    assert len(files) == 2
    assert files[0].stem != "000000", "the oldest are gone"
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600
        found = replay([(str(path), path.read_bytes())])
        assert not found.differences
        assert found.inputs.total() > 0 or path == files[-1]


def test_a_file_that_was_cut_off_replays_up_to_there(tmp_path: Path) -> None:
    record(tmp_path, A_RUN)
    ((path, data),) = read(tmp_path)
    found = replay([(path, data[:-7])])
    assert not found.differences
    assert found.inputs.total() == len(A_RUN) - 1


def test_an_input_that_was_changed_is_found(tmp_path: Path) -> None:
    record(tmp_path, A_RUN)
    ((path, data),) = read(tmp_path)
    opening, entries = read_recording(data, path=path)
    other = msgspec.structs.replace(entries[1], given=Connected(hello=hello(7)))
    changed = b"".join(map(framed, [opening, entries[0], other, *entries[2:]]))
    (difference,) = replay([(path, changed)]).differences
    assert difference.number == 1
    assert isinstance(difference.outputs[0], Keep | Admitted | Refusal)


@pytest.mark.parametrize("data", [b"", b"\0\0\0\5hello", os.urandom(300), b"\xff" * 64])
def test_what_is_no_recording_is_refused(data: bytes) -> None:
    with pytest.raises(LogError, match="p is no recording of a coordinator"):
        replay([("p", data)])


class Evil:
    """What somebody may put into a run folder that they send around."""

    def __reduce__(self) -> Any:
        return os.system, ("touch never",)


@pytest.mark.parametrize("planted", [Evil(), os.system, open, getattr, {"a": [Evil()]}])
def test_a_snapshot_that_names_anything_else_is_refused(planted: Any) -> None:
    opening = Opening(format=1, version="1", run="r", snapshot=pickle.dumps(planted))
    with pytest.raises(LogError, match="which is no part of a coordinator"):
        restored(opening, path="p")


def test_another_format_is_refused(tmp_path: Path) -> None:
    opening = Opening(format=9, version="1", run="r", snapshot=b"")
    with pytest.raises(LogError, match="format 9"):
        replay([("p", framed(opening))])


def test_a_folder_that_cannot_be_written_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    record(tmp_path, A_RUN)
    assert caplog.text.count("what the coordinator is told is not recorded") == 1


def test_a_disk_that_fills_up_ends_a_file_and_the_next_begins_with_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.write, []

    def write(descriptor: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 20:
            return real(descriptor, data[: len(data) // 2])
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    record(tmp_path, A_RUN)
    found = replay(read(tmp_path))
    assert found.files == 2
    assert not found.differences
    assert found.inputs.total() == len(A_RUN) - 2, "one was cut off, one is in the snapshot"
