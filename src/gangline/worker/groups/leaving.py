# SPDX-License-Identifier: Apache-2.0
"""Leaving politely: on SIGTERM (a preemption notice), or because an operator asked for it.

The signal handler only sets a flag: the main thread may be in the middle of a backward pass. Between
two steps the worker tells the coordinator, goes on training until a view without it holds, and leaves
there. A second signal does what it would have done without us. Ctrl-C (SIGINT) is not for leaving: the
script gets its KeyboardInterrupt, so that nothing behind the loop takes the training for finished.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from gangline.collectives import OutsiderGroup
from gangline.protocol.messages import BROKEN, FINISHED, LEFT, Exhausted, Leaving
from gangline.spec.event import Decision
from gangline.worker.memory import ending_error, is_out_of_memory, lowered

if TYPE_CHECKING:
    from types import FrameType

    from gangline.spec.view import View
    from gangline.worker.session import Session


def farewell(*, has_left: bool, is_behind: bool) -> str:
    """Why this worker says goodbye, as it ends: perhaps behind the others, which go on."""
    if has_left:
        return LEFT
    return FINISHED if ending_error() is None and not is_behind else BROKEN


class LeaveSignal:
    """Notes that the process was asked to leave, by SIGTERM. Only the main thread can listen.

    A script that handles the signal itself keeps its own handler.
    """

    def __init__(self) -> None:
        self.is_received = False
        self._pid = os.getpid()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        is_first = not self.is_received and os.getpid() == self._pid
        if is_first:
            self.is_received = True
            return
        # Asked twice, or a process that was forked from the worker: no politeness is expected.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def close(self) -> None:
        """The signal does again what it did before."""
        if signal.getsignal(signal.SIGTERM) == self._receive:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Departure:
    """This worker's way out of the job."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_told = False
        client = session.client
        self._signal = LeaveSignal() if client is not None and client.is_elastic else None
        self.has_left = False
        self.num_behind: int | None = None
        """How many workers the job had without this one when it left; None: it is one of them."""

    def is_due(self, view: View) -> bool:
        """Between two steps, the next of which is cut by `view`: whether this worker parts now.

        It may go (`is_allowed`), or the others went on without it while it hung.
        """
        client = self._session.client
        if client is None or self._signal is None:
            return False
        client.check_dissolved()
        if self._signal.is_received and not self._is_told:
            self._is_told = True
            client.send(Leaving())
        is_out = self._session.place.worker not in view.members
        return is_out or (client.is_dismissed and self._session.group.size == 1)

    @property
    def is_allowed(self) -> bool:
        """Whether the coordinator has let this worker go."""
        client = self._session.client
        return client is not None and client.is_dismissed

    @property
    def is_wanted(self) -> bool:
        """Whether this worker has left, or was asked to."""
        is_asked = self._signal is not None and self._signal.is_received
        return self.has_left or is_asked or self.is_allowed

    def leave(self, *, step: int, t: float) -> None:
        """Goes. Who was the last stays what it was; anybody else is no member of anything now."""
        self.has_left = True
        others = self._count_others()
        self.num_behind = others or None
        if self._session.group.size > 1:
            self._session.communicator.renew(OutsiderGroup(rank=others))
        why = "got SIGTERM" if self._signal is not None and self._signal.is_received else "asked to"
        self._session.record(
            Decision(
                t=t,
                what="leave",
                reason=f"worker {self._session.place.worker} left before step {step}: {why}",
                numbers={"worker": float(self._session.place.worker), "step": float(step)},
            )
        )

    def _count_others(self) -> int:
        """How many go on, by the newest view: this worker may have heard of it when it was out."""
        client = self._session.client
        assert client is not None
        view = client.view(client.newest_view)
        if view.whole is not None:
            return view.whole.workers - (self._session.place.worker in view.members)
        return len({*view.members} - {self._session.place.worker})

    def _tell_exhausted(self) -> None:
        """Who takes this worker's place shall not run out of memory, too."""
        client, worker = self._session.client, self._session.place.worker
        view = None if client is None or client.newest_view < 0 else client.view(client.newest_view)
        if client is None or view is None or worker not in view.members:
            return
        share = view.shares[view.rank_of(worker)]
        ceiling = lowered(share)
        client.send(Exhausted(max_samples=ceiling))
        self._session.record(
            Decision(
                t=time.time(),
                what="out_of_memory",
                reason=(
                    f"worker {worker} ran out of memory with a share of {share} samples: it leaves, "
                    f"and who takes its place gets at most {ceiling}"
                ),
                numbers={"worker": float(worker), "share": float(share), "ceiling": float(ceiling)},
            )
        )

    def close(self) -> None:
        """Says so if the script ends for lack of memory, and listens to signals no longer."""
        if self._signal is not None and is_out_of_memory(ending_error()):
            self._tell_exhausted()
        if self._signal is not None:
            self._signal.close()
