# SPDX-License-Identifier: Apache-2.0
"""What the loops of the benchmarks do. It imports numpy alone, so that new processes start soon."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np


def nothing(rows: Any) -> int:
    """The function whose loop is all overhead."""
    return 0


def native(rows: np.ndarray) -> np.ndarray:
    """Unequal rows in numpy, which lets other threads run meanwhile: each is as long as it says."""
    return np.array([np.sort(np.sin(np.arange(int(row)))).sum() for row in rows])


def plain(rows: np.ndarray) -> np.ndarray:
    """Unequal rows in plain Python, of which one thread at a time can run."""
    return np.array([sum(math.sin(one) for one in range(int(row))) for row in rows])


def transform(sides: np.ndarray) -> np.ndarray:
    """Of squares with these sides, a figure that takes a Fourier transform each."""
    return np.array([abs(np.fft.fft2(np.ones((side, side)))).max() for side in sides])


def sleep_as_worker(costs: np.ndarray, speeds: np.ndarray) -> np.ndarray:
    """Sleeps as long as these items would take the thread that does them."""
    own = int(threading.current_thread().name.rpartition("-")[2])
    time.sleep(float(costs.sum()) / speeds[own])
    return costs
