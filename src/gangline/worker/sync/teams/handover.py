# SPDX-License-Identifier: Apache-2.0
"""The leader's mean becomes its team's: beside the training where that can be, else between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gangline.collectives import GroupKey
from gangline.worker.groups.side import SideGroup, SideTask
from gangline.worker.prepare.handshake import copy_value
from gangline.worker.sync.teams.replica import Copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group
    from gangline.spec.view import View
    from gangline.worker.session import Session

LEVEL = "hand-over"
_LOOK_S = 0.02


class HandOver:
    """A group of the team's members beside their own, kept from round to round while all goes well.

    All members begin after the same step, in the same group, so they need not ask each other whether
    this is done beside the training.
    """

    def __init__(self, session: Session, view: Callable[[], View]) -> None:
        """`view` is what the members agreed on last."""
        assert session.door is not None
        self._session = session
        self._view = view
        self._side = SideGroup(session.door)
        self._made_for: Group | None = None
        """The members' own group when the one beside it was made."""
        self._task: SideTask[Copy | None] | None = None
        self.is_trusted = True
        """Whether the last round came to something: after one that did not, the next is handed over
        in the members' own group."""

    @property
    def result(self) -> Copy | None:
        """The mean, where it was handed over."""
        return None if self._task is None else self._task.result

    @property
    def is_possible(self) -> bool:
        """Whether the members can do it beside their training; all of them come to the same answer.

        In a tree of groups not everybody need reach everybody.
        """
        return self.is_trusted and self._session.group.size > 1 and self._view().structure is None

    @property
    def is_begun(self) -> bool:
        """Whether the members have begun it, in their present group."""
        return self._task is not None and self._made_for is self._session.group

    def begin(self, number: int, own: Copy | None, on_failure: Callable[[str], None]) -> None:
        """Begins to hand over the mean of a round, which is the leader's own.

        `on_failure` is told why it failed, unless because the members are in another group now.
        """
        self._break_off()
        if self._made_for is not self._session.group:
            self._side.leave()
        made_for = self._made_for = self._session.group
        view, worker, client = self._view(), self._session.place.worker, self._session.client
        assert client is not None
        rank, addresses = view.members.index(worker), client.addresses(view.number)
        key = GroupKey(
            run=self._session.place.run,
            view=number,
            attempt=view.group,
            level=f"{LEVEL}-{view.team}",
        )

        def give() -> Copy | None:
            group = self._side.group
            if group is None:
                group = self._side.connect(key, rank=rank, addresses=addresses)
            return hand_over(group, own)

        def tell(reason: str) -> None:
            if self._session.group is made_for:
                on_failure(reason)

        self._task = SideTask(give, tell)

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Waits for what was begun, unless the round is over before."""
        while self._task is not None and self._task.is_under_way:
            self._task.wait(_LOOK_S)
            if is_over():
                self._break_off()

    def end(self, *, is_committed: bool) -> None:
        """The round is over. Where it came to nothing, members may differ in what they have."""
        if not is_committed:
            self._break_off()
            self._side.leave()
        self._task, self.is_trusted = None, is_committed

    def close(self) -> None:
        """Breaks off what is under way."""
        self._break_off()
        self._side.leave()
        self._task = None

    def _break_off(self) -> None:
        if self._task is not None and self._task.is_under_way:
            self._side.break_off(self._task)


def hand_over(group: Group, own: Copy | None) -> Copy | None:
    """The leader's copy on all members; None where the leader has none."""
    if group.size == 1:
        return own
    value = None if own is None else {"values": own.values, "counters": list(own.counters)}
    found: dict[str, Any] | None = copy_value(group, value, root=0)
    return None if found is None else Copy(found["values"], tuple(found["counters"]))


def have_all(group: Group, is_here: bool) -> bool:
    """Whether every member says so."""
    count = torch.tensor([int(is_here)])
    group.all_reduce(count)
    return int(count) == group.size
