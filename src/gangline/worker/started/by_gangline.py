# SPDX-License-Identifier: Apache-2.0
"""`gangline run`, `gangline join`, and people who start workers as these do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.files.tokens import read_token
from gangline.protocol.launch import Launch
from gangline.worker.line.refinding import coordinator_of
from gangline.worker.place import Place

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class ByGangline:
    """A worker that was told everything."""

    launch: Launch

    def place(self, *, timeout_s: float) -> Place:
        """As it was told."""
        launch = self.launch
        if launch.probe_steps:
            return Place(
                launcher="gangline",
                run=launch.run,
                run_dir=launch.run_dir,
                probe_steps=launch.probe_steps,
            )
        return Place(
            launcher="gangline",
            is_elastic=True,
            run=launch.run,
            worker=launch.worker,
            workers=launch.workers,
            find_coordinator=lambda: coordinator_of(launch),
            token=read_token(Path(launch.token_file)),
            run_dir=launch.run_dir,
            speed=launch.speed,
            config=launch.config,
            faults=launch.faults,
            replaces=launch.replaces,
            machine=launch.machine,
        )


def recognise(environment: Mapping[str, str]) -> ByGangline | None:
    """What the variable GANGLINE_LAUNCH says."""
    launch = Launch.from_environment(environment)
    return None if launch is None else ByGangline(launch)
