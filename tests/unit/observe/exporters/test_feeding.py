# SPDX-License-Identifier: Apache-2.0
"""Other tools are fed from the logs, and one that fails harms nobody."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from gangline.cli.main import run_command
from gangline.eventlog import EventWriter, log_path
from gangline.eventlog.lines import encode_line
from gangline.observe.exporters import Exporter, ExportThread, Point, Target, find_target, tools
from gangline.observe.exporters.feeding import Figures
from gangline.spec.errors import UsageError
from gangline.spec.event import Logged, StepDone, Utilisation, ViewAdopted

if TYPE_CHECKING:
    from pathlib import Path


class Kept:
    """Keeps what it is given; fails where it is told to."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.points: list[Point] = []
        self.status = ""
        self.fails_at = fails_at

    def put(self, point: Point) -> None:
        if len(self.points) == self.fails_at:
            raise OSError("the disk\nis full")
        self.points.append(point)

    def close(self, status: str) -> None:
        self.status = status

    @property
    def losses(self) -> list[tuple[int, float]]:
        return [(one.step, one.values["loss"]) for one in self.points if "loss" in one.values]


def target(exporter: Exporter, name: str = "kept") -> Target:
    return Target(name=name, open=lambda run: exporter)


def write_run(folder: Path, steps: int = 3) -> None:
    """Two workers with 8 and 24 samples, that log losses of 1 and 5 more each step."""
    for worker, samples, loss in ((0, 8, 1.0), (1, 24, 5.0)):
        source = f"worker {worker}"
        with EventWriter(log_path(folder, source), run="r", source=source) as log:
            log.write(
                ViewAdopted(t=0, view=0, step=0, members=[0, 1], shares=[8, 24], reason="given")
            )
            for step in range(steps):
                log.write(
                    StepDone(
                        t=100.0 + step, worker=worker, step=step, epoch=0, view=0, samples=samples,
                        start=32 * step, stop=32 * step + 32, compute_s=0.5, data_s=0,
                        exchange_s=0.1, update_s=0,
                    )
                )  # fmt: skip
                log.write(
                    Logged(
                        t=100.0 + step, worker=worker, step=step, epoch=0, samples=samples, view=0,
                        values={"loss": loss + step},
                    )
                )  # fmt: skip
            log.write(
                Utilisation(
                    t=101, worker=worker, cpu=0.9, node_cpu=0.5, memory_bytes=7, node_memory=0.1,
                    threads=3, sent_bytes=0, received_bytes=0,
                )
            )  # fmt: skip


def test_a_tool_gets_means_by_samples_and_our_own_figures(tmp_path: Path) -> None:
    kept, lines = Kept(), list[str]()
    thread = ExportThread(tmp_path, [target(kept)], run="r", tell=lines.append, interval_s=0.01)
    write_run(tmp_path)
    thread.close("done")
    assert kept.losses == [(0, 4.0), (1, 5.0), (2, 6.0)]
    own = {name: value for one in kept.points for name, value in one.values.items()}
    assert own["gangline/samples_per_second"] == pytest.approx(32)
    assert own["gangline/share/1"] == 24
    assert own["gangline/cpu/0"] == 0.9
    assert "gangline/gpu/0" not in own
    assert kept.status == "done"
    assert lines == []
    steps = [one.step for one in kept.points]
    assert steps == sorted(steps)


def test_one_that_fails_is_named_once_and_the_others_go_on(tmp_path: Path) -> None:
    def refuse(run: str) -> Exporter:
        raise ConnectionError(f"no server for {run}")

    kept, failing, lines = Kept(), Kept(fails_at=1), list[str]()
    targets = [Target(name="away", open=refuse), target(failing, "full"), target(kept)]
    thread = ExportThread(tmp_path, targets, run="r", tell=lines.append, interval_s=0.01)
    write_run(tmp_path)
    thread.close("failed")
    assert sorted(lines) == [
        "away is given nothing more of this run: no server for r",
        "full is given nothing more of this run: the disk is full",
    ]
    assert len(kept.losses) == 3
    assert kept.status == "failed"
    assert failing.status == ""


def test_one_that_hangs_does_not_keep_the_run_from_ending(tmp_path: Path) -> None:
    released = threading.Event()

    class Hanging(Kept):
        def close(self, status: str) -> None:
            released.wait(20)

    lines: list[str] = []
    thread = ExportThread(tmp_path, [target(Hanging(), "slow")], run="r", tell=lines.append)
    thread.close("done", wait_s=0.1)
    released.set()
    assert lines == ["slow did not take the rest of the run within 0.1 s"]


def test_a_torn_line_is_waited_for(tmp_path: Path) -> None:
    write_run(tmp_path, steps=1)
    kept = Kept()
    thread = ExportThread(tmp_path, [target(kept)], run="r", tell=print, interval_s=0.01)
    path = log_path(tmp_path, "worker 0")
    event = Logged(t=1.0, worker=0, step=9, epoch=0, samples=1, values={"loss": 2.0})
    line = encode_line(event)
    with path.open("ab") as log:
        log.write(line + line[:30])
    thread.close("done")
    assert kept.losses == [(9, 2.0)]


def test_figures_of_a_run_without_steps_are_none() -> None:
    assert Figures().points_of([], is_final=True) == []


@pytest.mark.parametrize("flag", ["tensorboard", "wandb", "mlflow", "opentelemetry"])
def test_a_tool_that_is_not_installed_is_named_before_anything_begins(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tools, "_is_installed", lambda package: False)
    with pytest.raises(UsageError, match=rf"--{flag} needs .*pip install 'gangline\[{flag}\]'"):
        find_target(flag, "x")
    (tmp_path / "train.py").write_text("")
    assert run_command(["run", f"--{flag}", "x", str(tmp_path / "train.py")]) == 2
    assert f"gangline[{flag}]" in capsys.readouterr().err


def test_a_package_whose_parent_is_missing_is_not_installed() -> None:
    assert not tools._is_installed("no_such_package.inside")
    assert tools._is_installed("json.decoder")
