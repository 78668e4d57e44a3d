# SPDX-License-Identifier: Apache-2.0
"""The same scripts by the real commands: `python`, `gangline run` and `torchrun`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from script_jobs import FOLDER, LAUNCHER_VARIABLES, differences, plain
from test_scripts import KILLS

from cases import quick_of
from gangline.eventlog import read_run
from gangline.spec.event import FaultFired, StepDone

QUICK_RUN = "schedules"
"""What `make test` runs; the others are slow because each of their processes imports torch anew."""
DEADLINE_S = 100.0
PLAN = """\
[[faults]]
worker = {worker}
step = {step}
where = "{where}"
kind = "kill"
"""


def run_command(arguments: list[str], folder: Path) -> dict[str, Any]:
    """What a script has written that was started by this command; its processes are gone."""
    environment = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
    environment |= {"OMP_NUM_THREADS": "1", "RESULT": str(folder / "result.pt")}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    found: dict[str, Any] = torch.load(folder / "result.pt")
    return found


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("script", KILLS)
def test_python_trains_the_plain_model(script: str, tmp_path: Path) -> None:
    found = run_command([str(FOLDER / f"{script}.py")], tmp_path)
    assert not differences(found, plain(script))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("script", quick_of(KILLS, quick=[QUICK_RUN]))
def test_gangline_run_trains_the_plain_model_and_survives_a_kill(
    script: str, tmp_path: Path
) -> None:
    kill = KILLS[script]
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(worker=kill.worker, step=kill.step, where=kill.where))
    flags = ["--everybody", "--nodes", "3", "--run-dir", str(tmp_path / "run")]
    flags += ["--faults", str(plan)]
    scripts = [str(FOLDER / "reshared.py"), str(FOLDER / f"{script}.py")]
    found = run_command(["-m", "gangline.cli.main", "run", *flags, *scripts], tmp_path)
    expected = dict(plain(script))
    for result in (found, expected):
        result.pop("shown", None)
    assert not differences(found, expected)
    events = list(read_run(tmp_path / "run", notes=[]))
    assert any(isinstance(event, FaultFired) for event in events)
    shares = {e.samples for e in events if isinstance(e, StepDone) and e.worker == kill.worker}
    assert len(shares) > 1, "the shares changed"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("script", KILLS)
def test_torchrun_trains_the_plain_model(script: str, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    scripts = [str(FOLDER / "reshared.py"), str(FOLDER / f"{script}.py")]
    assert not differences(run_command([*launcher, *scripts], tmp_path), plain(script))
