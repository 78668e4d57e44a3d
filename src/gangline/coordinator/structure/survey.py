# SPDX-License-Identifier: Apache-2.0
"""A survey of the links between the workers of a running job, with fewer measurements than pairs.

1. One worker per host knocks at those of all other hosts, three times each: one round trip per knock.
2. The hosts are put in a row, each next to the one that answers it fastest: those of one site follow
   each other.
3. Hosts that are 1, 2, 4, … places apart measure the way between them. Pairs of one round have nobody
   in common, so they do not disturb each other: at most h·log₂ h measurements in 2·log₂ h rounds,
   which is every pair of up to three hosts, and 321 of 2016 with 64.
4. On each host with several workers, two of them measure the way between them.
5. Two hosts that both only call out, and do not reach each other, are passed on by one that can be
   called: what that way takes follows from its two halves.

A measurement is 15 echoes, and five large messages each way. Training goes on meanwhile: what else is
under way on a link is part of what is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.coordinator.outgoing import Outgoing
from gangline.protocol.messages import (
    FromSurveyor,
    Knock,
    Knocked,
    LinkFound,
    LinkServed,
    MeasureLink,
    ServeLink,
)
from gangline.protocol.status import SurveyedLink, SurveyStatus
from gangline.spec.errors import UsageError
from gangline.spec.exchange.address import WireAddress

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_HOSTS = 64
PATIENCE_S = 30.0
"""What nobody answers for so long is left out."""


class _Pair(NamedTuple):
    server: int
    client: int


class Survey:
    """One survey, from its first question to its last answer."""

    def __init__(self, addresses: Mapping[int, WireAddress], now: float) -> None:
        self._addresses = dict(sorted(addresses.items()))
        self._hosts: dict[str, list[int]] = {}
        for worker, address in self._addresses.items():
            # Who cannot share memory with anybody is taken for a host of its own.
            self._hosts.setdefault(address.host_id or f"worker {worker}", []).append(worker)
        if len(self._hosts) > MOST_HOSTS or len(self._addresses) < 2:
            raise UsageError(
                f"a survey is for 2 workers or more on up to {MOST_HOSTS} hosts, and there are "
                f"{len(self._addresses)} on {len(self._hosts)}; write the profile by hand"
            )
        self._speakers = [workers[0] for workers in self._hosts.values()]
        self._began_s = self._changed_s = now
        self._ended_s: float | None = None
        self._knocks: dict[int, tuple[float, ...]] = {}
        self._rounds: list[list[_Pair]] = []
        self._open: dict[int, _Pair] = {}
        self._number = 0
        self._num_done = self._num_pairs = 0
        self._links: list[SurveyedLink] = []
        self._errors: list[str] = []

    @property
    def is_over(self) -> bool:
        return self._ended_s is not None

    def status(self) -> SurveyStatus:
        """How far it is, and what was found."""
        return SurveyStatus(
            is_over=self.is_over,
            num_done=self._num_done,
            num_pairs=self._num_pairs,
            took_s=None if self._ended_s is None else self._ended_s - self._began_s,
            hosts=list(self._hosts.values()),
            links=self._links,
            errors=self._errors,
        )

    def begin(self) -> list[Outgoing]:
        """The first questions."""
        return [Outgoing(worker, self._knock(worker)) for worker in self._speakers]

    def _knock(self, worker: int) -> Knock:
        others = (self._addresses[one] for one in self._speakers if one != worker)
        return Knock(number=0, addresses=tuple(others))

    def tick(self, now: float) -> list[Outgoing]:
        """Goes on without those that do not answer."""
        if self.is_over or now - self._changed_s < PATIENCE_S:
            return []
        self._errors += [
            f"worker {p.server} and {p.client}: no answer" for p in self._open.values()
        ]
        self._open = {}
        return self._go_on(now) if self._num_pairs else self._order(now)

    def receive(self, worker: int, message: FromSurveyor, now: float) -> list[Outgoing]:
        """A worker's answer."""
        self._changed_s = now
        match message:
            case Knocked():
                self._knocks[worker] = message.times_s
                return self._order(now) if len(self._knocks) == len(self._speakers) else []
            case LinkServed(number=number, port=port):
                pair = self._open.get(number)
                if pair is None or pair.server != worker:
                    return []
                host = self._addresses[worker].host
                address = WireAddress(host=host, port=port)
                return [Outgoing(pair.client, MeasureLink(number=number, address=address))]
            case LinkFound():
                return self._note(worker, message, now)

    def _order(self, now: float) -> list[Outgoing]:
        """All have knocked, or were waited for long enough: who measures with whom."""
        if self._rounds or self._num_pairs:
            return []
        row = self._row()
        self._rounds = paired(row)
        local = [_Pair(workers[0], workers[1]) for workers in self._hosts.values() if workers[1:]]
        self._rounds += [local] if local else []
        self._num_pairs = sum(map(len, self._rounds))
        return self._go_on(now)

    def _row(self) -> list[int]:
        """Each host next to the one that answers it fastest, of those that are left."""
        left = list(self._speakers)
        row = [left.pop(0)]
        while left:
            last = row[-1]
            nearest = min(left, key=lambda one: self._between_s(last, one))
            left.remove(nearest)
            row.append(nearest)
        return row

    def _between_s(self, first: int, second: int) -> float:
        others = [one for one in self._speakers if one != first]
        times = self._knocks.get(first, ())
        known_s = times[others.index(second)] if len(times) == len(others) else -1.0
        return known_s if known_s >= 0 else float("inf")

    def _go_on(self, now: float) -> list[Outgoing]:
        """The next round, when the one before is over."""
        self._changed_s = now
        if self._open:
            return []
        if not self._rounds:
            self._links += self._passed_on()
            self._ended_s = now
            return []
        outgoing = []
        for server, client in self._rounds.pop(0):
            is_called = self._addresses[client].is_called_by(self._addresses[server])
            pair = _Pair(client, server) if is_called else _Pair(server, client)
            self._number += 1
            self._open[self._number] = pair
            outgoing.append(Outgoing(pair.server, ServeLink(number=self._number)))
        return outgoing

    def _passed_on(self) -> list[SurveyedLink]:
        """The ways between those that do not reach each other, through the first that can be called.

        Bytes go on as they come, so that the slower half is what they take; latencies add up.
        """
        closed = [one for one in self._speakers if self._addresses[one].calls_out]
        relay = next((one for one in self._addresses if not self._addresses[one].calls_out), None)
        known = {frozenset((link.source, link.target)) for link in self._links}
        found = []
        for place, source in enumerate(closed):
            for target in closed[place + 1 :]:
                halves = [self._link_between(one, relay) for one in (source, target)]
                if frozenset((source, target)) in known or None in halves:
                    continue
                first, second = (half for half in halves if half is not None)
                times_s = [max(pair) for pair in zip(first.there_s, second.back_s, strict=False)]
                back_s = [max(pair) for pair in zip(first.back_s, second.there_s, strict=False)]
                found.append(
                    SurveyedLink(
                        source=source,
                        target=target,
                        latency_s=first.latency_s + second.latency_s,
                        num_bytes=first.num_bytes,
                        there_s=times_s,
                        back_s=back_s,
                    )
                )
        return found

    def _link_between(self, source: int, target: int | None) -> SurveyedLink | None:
        """A way that was measured, seen from `source`."""
        for link in self._links:
            if (link.source, link.target) == (source, target):
                return link
            if (link.target, link.source) == (source, target):
                return SurveyedLink(
                    source=source,
                    target=link.source,
                    latency_s=link.latency_s,
                    num_bytes=link.num_bytes,
                    there_s=link.back_s,
                    back_s=link.there_s,
                )
        return None

    def _note(self, worker: int, found: LinkFound, now: float) -> list[Outgoing]:
        pair = self._open.get(found.number)
        if pair is None or worker not in pair:
            return []
        del self._open[found.number]
        self._num_done += 1
        if found.error:
            self._errors.append(f"worker {pair.client} to {pair.server}: {found.error}")
        else:
            self._links.append(
                SurveyedLink(
                    source=pair.client,
                    target=pair.server,
                    latency_s=found.latency_s,
                    num_bytes=found.num_bytes,
                    there_s=list(found.there_s),
                    back_s=list(found.back_s),
                )
            )
        return self._go_on(now)


def paired(row: list[int]) -> list[list[_Pair]]:
    """Those that are 1, 2, 4, … places apart, in rounds in which nobody is twice."""
    rounds = []
    distance = 1
    while distance < len(row):
        for side in (0, 1):
            pairs = [
                _Pair(row[place], row[place + distance])
                for place in range(len(row) - distance)
                if place // distance % 2 == side
            ]
            rounds += [pairs] if pairs else []
        distance *= 2
    return rounds
