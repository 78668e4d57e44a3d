# SPDX-License-Identifier: Apache-2.0
"""The example script, unchanged, as a plain script and under torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "train.py"
OPTIONS = ["--epochs", "1"]
DEADLINE_S = 90.0
LAUNCHERS = {
    "python": [sys.executable],
    "torchrun": [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node", "2"),
    ],
}


def run_script(launcher: str) -> str:
    """The script's output; its processes are gone afterwards."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    environment.pop("GANGLINE_LAUNCH", None)
    process = subprocess.Popen(
        [*LAUNCHERS[launcher], str(SCRIPT), *OPTIONS],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its workers when it is asked to end, not when killed
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    return output


def accuracies(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)% of the test digits", output)]


@pytest.mark.timeout(120)
def test_the_same_script_trains_alike_alone_and_under_torchrun() -> None:
    with ThreadPoolExecutor() as threads:
        alone, together = threads.map(run_script, ["python", "torchrun"])
    assert "trained by 1 worker(s)" in alone
    assert "trained by 2 worker(s)" in together
    # The same samples in the same order: only rounding differs.
    assert accuracies(together) == pytest.approx(accuracies(alone), abs=2.0)
    assert accuracies(together)[-1] > 50
    assert together.count("epoch 1:") == 1, "only the main worker prints"
