# SPDX-License-Identifier: Apache-2.0
"""What to do about a worker that the others wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.observe.page.accounts import Accounts

_MUCH_DATA = 0.2
_UNLIKE = 0.85
"""A worker slower than this part of the mean is unlike the others."""


def advise_on_worker(accounts: Accounts, worker: int) -> str:
    """The most likely cause, and what mends it."""
    if accounts.fold.lanes.num_workers:
        return "It was the slowest: look what else its machine does, or do without it."
    busy_s = sum(accounts.spent_s(worker, kind) for kind in ("compute", "data", "update"))
    if busy_s > 0 and accounts.spent_s(worker, "data") > _MUCH_DATA * busy_s:
        part = accounts.spent_s(worker, "data") / busy_s
        return (
            f"It waits for data itself, {part:.0%} of its own time: "
            "give its data loader more processes (num_workers), or bring the data nearer."
        )
    shares = [
        view.shares for view in accounts.fold.timeline.views.values() if worker in view.members
    ]
    is_equal = bool(shares) and all(max(own) - min(own) <= 1 for own in shares)
    speed = _relative_speed(accounts, worker)
    if is_equal and speed is not None and speed < _UNLIKE:
        return (
            f"It has as large a share as the others, and computes at {speed:.2g} times their mean "
            "speed: let shares follow speeds (`--allocation balanced`)."
        )
    if shares and shares[-1] and min(shares[-1]) <= 1:
        return (
            "Even the smallest share takes it too long: larger batches give it something to do, or do "
            "without it."
        )
    if is_equal:
        return (
            "The workers compute about equally fast, and take turns at being last: "
            "`--allocation balanced` evens out what is left."
        )
    return (
        "Its share follows its speed; its steps vary. Look below at its utilisation for other programs "
        "on the machine, and at the decisions."
    )


def _relative_speed(accounts: Accounts, worker: int) -> float | None:
    """By the mean of the others; None where somebody computed nothing."""
    rates = {}
    for one in accounts.workers:
        compute_s = accounts.spent_s(one, "compute")
        if compute_s > 0:
            rates[one] = accounts.samples_of(one) / compute_s
    own = rates.pop(worker, None)
    if own is None or not rates or not sum(rates.values()):
        return None
    return own / (sum(rates.values()) / len(rates))
