# SPDX-License-Identifier: Apache-2.0
"""`gangline probe SCRIPT`: what is measured of the user's own loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gangline.cli.main import run_command
from gangline.spec.profile import ClusterProfile
from gangline.spec.view import View
from gangline.worker.prepare.selfprobe import ProbeSchedule, sizes_of

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys, torch, gangline
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(40, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 40), torch.randn(64, 10))
gangline.init()
model, optimizer, loader = gangline.prepare(
    model, optimizer, DataLoader(data, batch_size=16, shuffle=True)
)
for epoch in gangline.epochs(int(sys.argv[1])):
    for x, y in loader:
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
open(sys.argv[2], "w").write("it came to its end")
"""


def test_sizes_are_parts_of_the_batch_and_never_too_small() -> None:
    assert sizes_of(64, minimum=1) == [8, 16, 32, 64]
    assert sizes_of(8, minimum=2) == [2, 4, 8]
    assert sizes_of(1, minimum=1) == [1]


def test_sizes_take_turns_until_the_script_is_ended() -> None:
    view = View(number=0, members=(0,), shares=(16,))
    schedule = ProbeSchedule(view, steps=6, minimum=1)
    assert [schedule.cut(step).global_batch for step in range(6)] == [2, 4, 8, 16, 2, 4]
    with pytest.raises(SystemExit):
        schedule.cut(6)


def test_a_script_is_measured_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert run_command(["probe", "train.py", "1000", "end.txt"]) == 0
    text = capsys.readouterr().out
    assert f"workload: global_batch=16,gradient_bytes={410 * 4}" in text
    assert "memory: the script used" in text
    (node,) = ClusterProfile.from_file(tmp_path / "profile.json").nodes
    assert node.per_sample_s > 0
    assert not (tmp_path / "end.txt").exists(), "it is ended before its own end"


def test_a_script_that_trains_too_little_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('nothing')")
    assert run_command(["probe", "train.py"]) == 2
    assert "let it call gangline.prepare()" in " ".join(capsys.readouterr().err.split())


def test_the_end_of_a_script_that_fails_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise RuntimeError('my own fault')")
    assert run_command(["probe", "train.py"]) == 1
    error = capsys.readouterr().err
    assert "the script could not be measured" in error
    assert "my own fault" in error
