# SPDX-License-Identifier: Apache-2.0
"""How a worker finds its coordinator again, and what it says when it gives up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from gangline.files.announcement import read_announcement
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.protocol.launch import Launch


def coordinator_of(launch: Launch) -> str:
    """Where the coordinator is now: as it was given, but at the port that it announced last.

    The announcement is in the run folder, if that can be reached from here. Its host may be that of
    a loopback or of all interfaces, so a host that was given is kept.
    """
    if launch.coordinator is None:
        return read_announcement(Path(launch.announced_in or launch.run_dir)).url
    if launch.announced_in is None:
        return launch.coordinator
    try:
        announced = read_announcement(Path(launch.announced_in))
    except LaunchError:
        return launch.coordinator  # only there it can be looked up
    given, found = urlsplit(launch.coordinator), urlsplit(announced.url)
    if announced.run != launch.run or found.port is None:
        return launch.coordinator
    host = given.netloc.rpartition(":")[0]
    return urlunsplit((given.scheme, f"{host}:{found.port}", "", "", ""))


def given_up(find_url: Callable[[], str], *, away_s: float) -> LaunchError:
    """What to say, and to do, when a coordinator that is needed does not come back."""
    try:
        place = f"at {find_url()}"
    except LaunchError as error:
        place = f"({error})"
    return LaunchError(
        f"the coordinator {place} has not answered for {away_s:.0f} s, and this worker cannot go on "
        "without it: start the coordinator again at the same address and with the same --run-dir "
        "(`gangline up --port PORT`), or the whole job from its last checkpoint; --max-away has "
        "workers wait longer"
    )
