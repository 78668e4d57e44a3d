# SPDX-License-Identifier: Apache-2.0
"""Functions that processes of tests import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gangline

if TYPE_CHECKING:
    import numpy as np


def double(rows: np.ndarray) -> np.ndarray:
    """Twice the rows."""
    return rows * 2


def count_lines(rows: np.ndarray, folder: str) -> np.ndarray:
    """Leaves a file for each row that it is called with: twice is an error."""
    for row in rows:
        (Path(folder) / f"{int(row)}").touch(exist_ok=False)
    return rows


def end_once(rows: np.ndarray, folder: str, fault: str) -> np.ndarray:
    """The first process that has row 5 ends, or hangs, with it."""
    if 5 in rows:
        try:
            (Path(folder) / "ended").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    return rows * 2


def always_end(rows: np.ndarray) -> np.ndarray:
    """Whoever is called ends."""
    os._exit(7)


def end_at_five(rows: np.ndarray) -> np.ndarray:
    """Whoever has row 5 ends."""
    if 5 in rows:
        os._exit(9)
    return rows * 2


def sleep_long(rows: list[int], pids: str) -> list[int]:
    """Says which process this is, and sleeps."""
    with Path(pids).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(600)
    return rows


def map_inside(rows: np.ndarray) -> float:
    """Starts processes from a process."""
    total: float = gangline.reduce(double, rows, where="processes", workers=1)
    return total


class Fives:
    """A scheme of one's own: chunks of five."""

    def __init__(self, loop: object) -> None: ...

    def next_size(self, worker: int, remaining: int) -> int:
        """Five."""
        return 5

    def finished(self, worker: int, size: int, seconds: float, overhead_s: float = 0.0) -> None:
        """Nothing is learnt."""
