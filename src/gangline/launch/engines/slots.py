# SPDX-License-Identifier: Apache-2.0
"""What an engine that has places for agents must be able to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gangline.files.plainfile import replace_plain
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.protocol.calling import Invitation

AGENT = ("-m", "gangline.engines.agent", "--call")
"""What python is given in each place; a file with the invitation may follow."""


class Slots(Protocol):
    """The places of one run in an engine: in each of them it starts an agent, which calls us."""

    def start(self, invitation: Invitation, run_dir: Path) -> None:
        """Has the engine start an agent in each place, and does not wait for them.

        The invitation is secret: it goes to the agents' standard input, or into a file of mode 0600,
        and never into arguments or variables.
        """

    @property
    def expected(self) -> int | None:
        """How many agents will come; None: as many as they say themselves."""

    def problem(self) -> str | None:
        """Why no agents come any more, in words that say what to do; None: nothing is known."""

    def close(self) -> None:
        """Ends what was started; the agents have been told to end before."""


def write_invitation(invitation: Invitation, run_dir: Path) -> Path:
    """Puts the invitation into a file of the run folder that nobody else can read."""
    path = run_dir / "invitation"
    try:
        replace_plain(path, invitation.line(), mode=0o600)
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror}") from error
    return path
