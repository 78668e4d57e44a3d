# SPDX-License-Identifier: Apache-2.0
"""Where it is left to `auto` how the workers are held together: what it chooses, and says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.control.sync.autosync import SyncWatch
from gangline.planning.structure.relaxing import choose_sync, groups_by_place
from gangline.spec.event import Decision
from gangline.spec.sync import AUTO, IN_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.control.sync.autosync import Advice
    from gangline.control.sync.pace import Pace
    from gangline.eventlog import EventSink
    from gangline.planning.structure.relaxing import SyncChoice
    from gangline.protocol.messages import Ready
    from gangline.spec.profile import ClusterProfile
    from gangline.spec.sync import Sync


class AutoSync:
    """Chooses by what is known of the links before the first step, and by what is measured then."""

    def __init__(
        self, profile: ClusterProfile | None, events: EventSink, clock: Callable[[], float]
    ) -> None:
        self._profile = profile
        self._events = events
        self._clock = clock
        self._choice: SyncChoice | None = None
        self._watch: SyncWatch | None = None
        """None: it is not left to `auto`."""
        self._kept_for = ""
        """Why it could not switch, the last time."""

    @property
    def is_on(self) -> bool:
        """Whether it is left to `auto`."""
        return self._watch is not None

    def turn(self, sync: Sync) -> None:
        """Somebody has said how the workers are to be held together: by `auto`, or otherwise."""
        self._watch = SyncWatch(levels=sync.levels) if sync.kind == AUTO else None

    def resolve(self, ready: Ready, *, has_begun: bool) -> Ready:
        """What a worker is ready for, where it was left to what is known of the links."""
        if ready.sync.kind == AUTO:
            if not has_begun:
                self.turn(ready.sync)
            sync = self.choose(ready, levels=ready.sync.levels)
            ready = msgspec.structs.replace(ready, sync=sync)
        if ready.sync.is_relaxed and ready.structure is None and self._profile is not None:
            ready = msgspec.structs.replace(ready, structure=groups_by_place(self._profile))
        return ready

    def choose(self, ready: Ready, *, levels: int) -> Sync:
        """What `auto` is, by what is known of the links."""
        choice = choose_sync(self._profile, ready.gradient_bytes, levels=levels)
        if ready.must_stay:
            choice = choice._replace(sync=IN_STEP, reason=f"in step: {ready.must_stay}")
        if choice != self._choice:
            self._choice = choice
            self._say("choose_sync", choice.reason, exchange_s=choice.exchange_s)
        return choice.sync

    # --- while the job runs ----------------------------------------------------------------------

    def see_step(self, compute_s: float) -> None:
        """A worker made a step."""
        if self._watch is not None:
            self._watch.see_step(compute_s)

    def changed(self, now: float) -> None:
        """The workers are held together in another way."""
        if self._watch is not None:
            self._watch.changed(now)

    def advise(
        self, now: float, *, pace: Pace | None, exchanges: Sequence[float], is_apart: bool
    ) -> Advice | None:
        """Another way of holding the workers together, if it is time for one."""
        if self._watch is None:
            return None
        for exchange_s in exchanges:
            self._watch.see_round(exchange_s)
        return self._watch.advise(now, pace=pace, is_apart=is_apart)

    def note_taken(self, advice: Advice) -> None:
        """The workers are switched as was advised."""
        self._kept_for = ""
        self._say("choose_sync", advice.reason, **advice.numbers)

    def note_refused(self, advice: Advice, error: str) -> None:
        """They cannot be: that is said once. Members and structure may change: it is tried again."""
        if error != self._kept_for:
            self._kept_for = error
            self._say("keep_sync", f"{advice.reason}; but {error}")

    def _say(self, what: str, reason: str, **numbers: float) -> None:
        self._events.write(Decision(t=self._clock(), what=what, reason=reason, numbers=numbers))
