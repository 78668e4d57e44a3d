# SPDX-License-Identifier: Apache-2.0
"""The bill of a run: where the node-hours went, who cost them, and what to do about it.

A node-hour is an hour of one machine. Time that a worker waits is charged to the worker that was ready
last in that step. What a node costs is given by whoever asks; without a price there are only hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from gangline.observe.page.advice import advise_on_worker
from gangline.observe.page.presence import DOWN, PAUSED, SPARE

if TYPE_CHECKING:
    from gangline.observe.page.accounts import Accounts

LEAST_FRACTION = 0.005
"""What is less of the whole bill is not listed."""

_AWAY = {
    DOWN: (
        "was down",
        "It ended before the others did: see the faults below. `--respawn` starts another one.",
    ),
    SPARE: (
        "stood by as a spare",
        "It would have slowed the others down. Give it back, or larger batches, of which it could do "
        "a part.",
    ),
}
"""What is said of a worker that is away, and what to do about it."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What an hour of a node costs."""

    per_hour: float = 0.0
    of_node: Mapping[str, float] = {}
    """Of nodes that cost something else."""
    currency: str = "€"

    @property
    def is_given(self) -> bool:
        """Whether there is money to speak of."""
        return self.per_hour > 0 or bool(self.of_node)

    def of(self, node: str) -> float:
        """What an hour of this node costs."""
        return self.of_node.get(node, self.per_hour)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the bill."""

    kind: str
    """`wait`, `exchange`, `data`, `other`, `start`, `spare`, `down`, `paused` or `rest`."""
    text: str
    advice: str
    node_s: float
    fraction: float
    """Of the whole bill."""
    money: float | None
    worker: int | None = None


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, the dearest first."""

    node_s: float
    money: float | None
    useful_s: float
    """Computing and updating: what the rest is spent for."""
    items: list[Item]
    currency: str


def make_bill(accounts: Accounts, price: Price) -> Bill:
    """What the whole run cost, and for what."""
    return _Clerk(accounts, price).bill()


class _Clerk:
    """Knows the workers, and what an hour of each costs."""

    def __init__(self, accounts: Accounts, price: Price) -> None:
        self.accounts = accounts
        self.price = price
        self.workers = accounts.workers
        self.weight = accounts.weight
        self.rate = {w: price.of(accounts.node_of(w)) / 3600 * self.weight[w] for w in self.workers}
        self.paid_s = {w: accounts.paid_s(w) for w in self.workers}
        self._weights, self._rates = sum(self.weight.values()), sum(self.rate.values())
        self._in_steps_s = sum(accounts.in_steps_s(w) for w in self.workers)
        self.total_s = sum(self.paid_s[w] * self.weight[w] for w in self.workers)
        self.money = None
        if price.is_given:
            self.money = sum(self.paid_s[w] * self.rate[w] for w in self.workers)

    def bill(self) -> Bill:
        """All lines."""
        useful = self._spent("compute") + self._spent("update")
        items = [*self._waits(), *self._parts(), *self._absences()]
        listed = [item for item in items if item.fraction >= LEAST_FRACTION]
        accounted = useful + sum(item.node_s for item in listed)
        rest_s = self.total_s - accounted
        listed.append(
            self._item(
                "rest",
                "Recoveries, the ends of epochs and the end of the job took {part} of the time",
                "Validation and checkpoints between epochs are in it, too.",
                max(0.0, rest_s),
            )
        )
        return Bill(
            node_s=self.total_s,
            money=self.money,
            useful_s=useful,
            items=sorted(
                (item for item in listed if item.fraction >= LEAST_FRACTION),
                key=lambda item: -item.node_s,
            ),
            currency=self.price.currency,
        )

    def _spent(self, kind: str) -> float:
        return sum(self.accounts.spent_s(w, kind) * self.weight[w] for w in self.workers)

    def _waits(self) -> list[Item]:
        items = [self._wait(*one) for one in self.accounts.caused_waits.items()]
        small = [item for item in items if item.fraction < LEAST_FRACTION]
        if len(small) > 1:
            items.append(
                self._item(
                    "wait",
                    f"Waiting for {len(small)} workers, a little for each, took {{part}} of the time",
                    "They take turns at being last: steps vary, or shares are not quite those of the "
                    "speeds.",
                    sum(item.node_s for item in small),
                )
            )
        return items

    def _wait(self, worker: int, waited_s: float) -> Item:
        is_among = worker in self.weight and len(self.workers) > 1
        num_others = len(self.workers) - is_among
        mean_weight = (self._weights - (self.weight[worker] if is_among else 0.0)) / num_others
        mean_rate = (self._rates - (self.rate[worker] if is_among else 0.0)) / num_others
        their_s = self._in_steps_s - (self.accounts.in_steps_s(worker) if is_among else 0.0)
        part = waited_s / their_s if their_s > 0 else 0.0
        is_listed = waited_s * mean_weight >= LEAST_FRACTION * self.total_s
        return self._item(
            "wait",
            f"{self.accounts.name_of(worker)} made the others wait {percent(part)} of the time",
            # Advice takes a look at all workers: only for those that are listed.
            advise_on_worker(self.accounts, worker) if is_listed else "",
            waited_s * mean_weight,
            rate=mean_rate / mean_weight,
            worker=worker,
        )

    def _parts(self) -> list[Item]:
        lines = (
            (
                "exchange",
                "Exchanging gradients took {part} of the time",
                "Larger batches exchange less often; `--structure auto` lets fast links carry more, "
                "`--compress top=8-bit` sends less over the slowest ones.",
            ),
            (
                "data",
                "Waiting for data took {part} of the time",
                "Give the data loader more processes (num_workers), or bring the data nearer.",
            ),
            (
                "other",
                "What the script did between its steps took {part} of the time",
                "Logging, validation and `.item()` calls between steps keep everybody from training.",
            ),
        )
        items = [self._item(kind, text, advice, self._spent(kind)) for kind, text, advice in lines]
        turns_s = self.accounts.fold.served.turns_s
        items.append(
            self._item(
                "wait",
                "Waiting for a turn at the parameter servers took {part} of the time",
                "A larger S in `ssp(S)`, or B in `backup(B)`, waits less for others; what is left even "
                "in `asp` is asking the coordinator.",
                sum(turns_s.get(w, 0.0) * self.weight[w] for w in self.workers),
            )
        )
        start_s = sum(self.accounts.started_after_s(w) * self.weight[w] for w in self.workers)
        items.append(
            self._item(
                "start",
                "Starting, until the first step was begun, took {part} of the time",
                "It is paid once: longer runs make it small.",
                start_s,
            )
        )
        return items

    def _absences(self) -> list[Item]:
        away: dict[tuple[int, str], float] = {}
        for absence in self.accounts.fold.presence.absences:
            if absence.worker in self.weight:
                key = (absence.worker, absence.why)
                away[key] = away.get(key, 0.0) + absence.end - absence.begin
        items = [
            self._absence(worker, why, time_s)
            for (worker, why), time_s in away.items()
            if why != PAUSED
        ]
        paused = {worker: time_s for (worker, why), time_s in away.items() if why == PAUSED}
        return [*items, self._pause(paused)] if paused else items

    def _pause(self, paused: Mapping[int, float]) -> Item:
        """One line for all: a pause is everybody's."""
        node_s = sum(time_s * self.weight[worker] for worker, time_s in paused.items())
        money = sum(time_s * self.rate[worker] for worker, time_s in paused.items())
        return self._item(
            PAUSED,
            "The job was paused, because an operator asked for it: {part} of the time",
            "Machines that stand still cost what they cost at work: for longer, `gangline end` writes "
            "a checkpoint, from which the job goes on later.",
            node_s,
            rate=money / node_s if node_s > 0 else None,
        )

    def _absence(self, worker: int, why: str, time_s: float) -> Item:
        what, advice = _AWAY[why]
        return self._item(
            why,
            f"{self.accounts.name_of(worker)} {what}: {{part}} of all time",
            advice,
            time_s * self.weight[worker],
            rate=self.rate[worker] / self.weight[worker],
            worker=worker,
        )

    def _item(
        self,
        kind: str,
        text: str,
        advice: str,
        node_s: float,
        *,
        rate: float | None = None,
        worker: int | None = None,
    ) -> Item:
        fraction = node_s / self.total_s if self.total_s > 0 else 0.0
        money = None
        if self.money is not None:
            mean_rate = self.money / self.total_s if self.total_s > 0 else 0.0
            money = node_s * (mean_rate if rate is None else rate)
        said = text.replace("{part}", percent(fraction))
        cost = "" if money is None else f" ({amount(money, self.price.currency)})"
        return Item(
            kind=kind,
            text=f"{said}: {node_hours(node_s)}{cost}",
            advice=advice,
            node_s=node_s,
            fraction=fraction,
            money=money,
            worker=worker,
        )


def percent(value: float) -> str:
    """A fraction with two digits, so that small ones are not 0 %."""
    return f"{value * 100:.2g} %" if value < 0.095 else f"{value * 100:.0f} %"


def amount(money: float, currency: str) -> str:
    """An amount of money; of less than a cent, two digits."""
    is_small = 0 < money < 0.01
    return f"{currency} {money:.2g}" if is_small else f"{currency} {money:,.2f}"


def node_hours(node_s: float) -> str:
    """Time of machines in the unit that fits."""
    if node_s >= 0.5 * 3600:
        hours = node_s / 3600
        return f"{hours:,.1f} node-hours" if hours < 1000 else f"{hours:,.0f} node-hours"
    if node_s >= 120:
        return f"{node_s / 60:.1f} node-minutes"
    return f"{node_s:.3g} node-seconds"
