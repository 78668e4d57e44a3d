# SPDX-License-Identifier: Apache-2.0
"""Scripts that end early, as people start them: the exit code, and what is said."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(150)
DEADLINE_S = 90.0
SCRIPT = """\
import sys
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import gangline

gangline.init()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(32, 4), torch.ones(32, 1)), batch_size=4)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for number, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    if sys.argv[1] == "agreed" and gangline.any(number == 1 and gangline.rank() == 1):
        break
    if sys.argv[1] == "alone" and number == 1 + gangline.rank():
        break  # the others end with the step that fails
print("saved by", gangline.rank() if gangline.is_main() else "nobody", flush=True)
"""


def launch(folder: Path, launcher: str, how: str) -> tuple[int, str]:
    """The exit code and all output; the processes are gone afterwards."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    commands = {
        "gangline": ["-m", "gangline.cli.main", "run", "--nodes", "2", "-o", "--run-dir", how],
        "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("GANGLINE_LAUNCH", None)
    process = subprocess.Popen(
        [sys.executable, *commands[launcher], str(script), how],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its workers when it is asked to end, not when killed
        output, _ = process.communicate()
    return process.returncode, output


@pytest.mark.parametrize("launcher", ["gangline", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_job_that_one_worker_has_left_alone_does_not_end_well(
    launcher: str, tmp_path: Path
) -> None:
    code, output = launch(tmp_path, launcher, "alone")
    assert code != 0, output
    assert "MismatchError: the workers' loops differ: worker 0 ended its script after 2" in output
    assert output.count("saved by 0") == 1
    assert "saved by 1" not in output


@pytest.mark.slow
def test_a_job_that_all_have_left_together_ends_well(tmp_path: Path) -> None:
    code, output = launch(tmp_path, "gangline", "agreed")
    assert code == 0, output
    assert "Error" not in output
    assert output.count("saved by 0") == 1
    assert output.count("saved by nobody") == 1
