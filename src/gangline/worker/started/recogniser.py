# SPDX-License-Identifier: Apache-2.0
"""What a recogniser of a launcher gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.worker.place import Place


class Started(Protocol):
    """What the environment says of this process: which worker it is of which run."""

    def place(self, *, timeout_s: float) -> Place:
        """This process's place in the job; the first worker serves the coordinator if nobody does.

        May wait for the others for so long, and raises LaunchError then.
        """


class Recogniser(Protocol):
    """A module that knows one launcher."""

    def recognise(self, environment: Mapping[str, str]) -> Started | None:
        """What that launcher says; None: it did not start this process.

        Raises UsageError where its variables contradict each other.
        """
