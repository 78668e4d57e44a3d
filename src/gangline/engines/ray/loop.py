# SPDX-License-Identifier: Apache-2.0
"""A worker of a GanglineTrainer: `python -m gangline.engines.ray.loop` runs the user's function.

The function comes as a file of the run, beside which no other user of the machine can look.
"""

from __future__ import annotations

import inspect
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangline.protocol.launch import Launch
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = "train_loop.pickle"


@dataclass(frozen=True, kw_only=True)
class TrainLoop:
    """What every worker of a trainer runs, and with what."""

    function: Callable[..., Any]
    config: dict[str, Any] | None
    storage: str
    """The folder of this run's checkpoints, as its file system knows it."""
    filesystem: Any
    """A file system of pyarrow."""
    checkpoint: Any
    """What to go on from, a `ray.train.Checkpoint`; None: nothing."""

    def run(self) -> Any:
        """What the function returns."""
        if inspect.signature(self.function).parameters:
            return self.function(self.config or {})
        return self.function()


_present: TrainLoop | None = None


def present() -> TrainLoop:
    """That of this process."""
    if _present is None:
        raise UsageError(
            "this process is no worker of a GanglineTrainer: call this in the function that one runs"
        )
    return _present


def main() -> None:
    """Reads the function and runs it; the main worker's result is told to the trainer."""
    global _present
    launch = Launch.from_environment(os.environ)
    if launch is None:
        raise UsageError("this module is run by a GanglineTrainer")
    with (Path(launch.run_dir) / "code" / FILE).open("rb") as file:
        loop: TrainLoop = pickle.load(file)
    _present = loop
    value = loop.run()

    from gangline.engines.ray.reporting import report_value

    report_value(value)


if __name__ == "__main__":
    # As a module of its own: functions that were pickled know it by that name.
    from gangline.engines.ray import loop as _loop

    _loop.main()
