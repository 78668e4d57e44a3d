# SPDX-License-Identifier: Apache-2.0
"""Everything that the page of a run shows, as plain values and columns of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gangline.observe.losses import describe_implausible, describe_loss
from gangline.observe.page.accounts import Accounts
from gangline.observe.page.bill import Price, amount, make_bill, node_hours, percent
from gangline.observe.page.gantt import gantt_model
from gangline.observe.page.series import (
    logged_charts,
    share_chart,
    step_chart,
    throughput_chart,
    utilisation_charts,
)
from gangline.observe.page.totals import SPENT
from gangline.observe.page.trees import cut_tree, flat_ring, parse_structure
from gangline.observe.report import counted, number, seconds
from gangline.observe.served import served_lines, staleness_bins
from gangline.observe.timeline import wall_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.observe.page.bill import Bill
    from gangline.observe.page.columns import Columns
    from gangline.observe.page.fold import Fold
    from gangline.spec.event import ViewAdopted

_MOST_LINKS = 64
_MOST_STRUCTURES = 50
_MOST_VIEWS = 200
_MOST_DRAWN = 128
"""Members of a group in the picture of a structure."""
_MOST_WORKERS = 512


def run_document(
    fold: Fold, *, columns: Columns, price: Price, notices: Sequence[str] = ()
) -> dict[str, Any]:
    """The data of one run's page."""
    accounts = Accounts(fold)
    timeline = fold.timeline
    return {
        "run": timeline.run,
        "status": timeline.ended.status if timeline.ended else "unknown",
        "reason": timeline.ended.reason if timeline.ended else "",
        "command": list(timeline.started.command) if timeline.started else [],
        "began": fold.origin or 0.0,
        "length": fold.length_s,
        "figures": _figures(accounts),
        "bill": _bill(accounts, price),
        "spent": {kind: _spent(accounts, kind) for kind in SPENT},
        "gantt": gantt_model(accounts, columns),
        "marks": [msgspec.to_builtins(mark) for mark in fold.happenings.marks],
        "throughput": throughput_chart(accounts, columns),
        "shares": share_chart(accounts, columns),
        "steps": step_chart(accounts, columns),
        "utilisation": utilisation_charts(accounts, columns),
        "logged": logged_charts(accounts, columns),
        "structures": _structures(accounts),
        "served": _served(fold),
        "workers": _workers(accounts),
        "views": [_view(accounts, view) for view in list(timeline.views.values())[-_MOST_VIEWS:]],
        "links": [
            {
                "from": accounts.name_of(link.worker),
                "to": accounts.name_of(link.peer),
                **msgspec.to_builtins(link),
            }
            for link in fold.links.ranked(_MOST_LINKS)
        ],
        "warnings": [*_warnings(fold), *notices],
    }


def _figures(accounts: Accounts) -> list[dict[str, str]]:
    fold = accounts.fold
    pace = fold.pace()
    num_workers = fold.lanes.num_workers or len(accounts.workers)
    told = [
        ("steps", f"{fold.totals.num_steps:,}"),
        ("samples", f"{fold.used.samples:,}"),
        ("workers", f"{num_workers:,}"),
        ("from start to end", seconds(wall_s(fold.timeline))),
        ("samples/s, steady", number(pace.throughput)),
        ("a step, steady, on average", seconds(pace.step_s)),
        ("efficiency", "-" if pace.efficiency is None else percent(pace.efficiency)),
    ]
    return [{"label": label, "value": value} for label, value in told]


def _bill(accounts: Accounts, price: Price) -> dict[str, Any]:
    bill = make_bill(accounts, price)
    return {"text": bill_headline(bill), **msgspec.to_builtins(bill)}


def bill_headline(bill: Bill) -> str:
    """The whole bill in one sentence."""
    useful = bill.useful_s / bill.node_s if bill.node_s > 0 else 0.0
    money = "" if bill.money is None else f" ({amount(bill.money, bill.currency)})"
    return f"The run took {node_hours(bill.node_s)}{money}; {percent(useful)} of it was training."


def _spent(accounts: Accounts, kind: str) -> float:
    return sum(accounts.spent_s(one, kind) * accounts.weight[one] for one in accounts.workers)


def _workers(accounts: Accounts) -> list[dict[str, Any]]:
    if accounts.fold.lanes.num_workers:
        return []  # the log says nothing of single ones
    return [_worker(accounts, one) for one in accounts.workers[:_MOST_WORKERS]]


def _worker(accounts: Accounts, worker: int) -> dict[str, Any]:
    fold = accounts.fold
    ready, ended = fold.timeline.ready.get(worker), fold.timeline.exits.get(worker)
    steps = accounts.steps_of(worker)
    last = fold.totals.last_steps
    how = "" if ended is None else ended.signal or f"exit code {ended.exit_code}"
    return {
        "worker": worker,
        "name": accounts.name_of(worker),
        "device": ready.device if ready else "",
        "steps": steps,
        "samples": accounts.samples_of(worker),
        "share": accounts.samples_of(worker) / steps if steps else None,
        "spent": {kind: accounts.spent_s(worker, kind) for kind in SPENT},
        "caused": accounts.caused_waits.get(worker, 0.0),
        "last": int(last[worker]) if worker < len(last) else 0,
        "ended": how if ended is None or not ended.reason else f"{how}: {ended.reason}",
    }


def _view(accounts: Accounts, view: ViewAdopted) -> dict[str, Any]:
    return {
        "x": view.t - (accounts.fold.origin or 0.0),
        "view": view.view,
        "team": view.team,
        "step": view.step,
        "members": view.members[:_MOST_WORKERS],
        "shares": view.shares[:_MOST_WORKERS],
        "reason": view.reason,
    }


def _structures(accounts: Accounts) -> list[dict[str, Any]]:
    """Who exchanged with whom, each time that it changed."""
    kept: list[dict[str, Any]] = []
    before: dict[int, tuple[str, tuple[int, ...]]] = {}
    newest: dict[int, dict[str, Any]] = {}
    for view in accounts.fold.timeline.views.values():
        now = (view.structure, tuple(view.members))
        shares = dict(zip(view.members, view.shares, strict=False))

        def member(worker: int, shares: dict[int, int] = shares) -> dict[str, Any]:
            node = accounts.node_of(worker)
            return {"worker": worker, "node": node, "share": shares.get(worker)}

        tree = parse_structure(view.structure, member) if view.structure else None
        tree = cut_tree(tree or flat_ring(view.members, member), _MOST_DRAWN)
        if before.get(view.team) == now:
            newest[view.team]["tree"] = tree  # the same with newer shares
            continue
        before[view.team] = now
        at_s = view.t - (accounts.fold.origin or 0.0)
        newest[view.team] = {"x": at_s, "step": view.step, "team": view.team, "tree": tree}
        kept.append(newest[view.team])
    return kept[-_MOST_STRUCTURES:]


def _served(fold: Fold) -> dict[str, Any] | None:
    """What parameter servers did; None where there are none."""
    summary = fold.served.summary()
    if summary is None:
        return None
    return {"lines": served_lines(summary), "staleness": staleness_bins(summary.staleness)}


def _warnings(fold: Fold) -> list[str]:
    warnings = [describe_loss(loss) for loss in fold.timeline.losses]
    if fold.stepper.num_implausible:
        warnings.append(describe_implausible(fold.stepper.num_implausible))
    if fold.stepper.num_incomplete:
        lacking = counted(fold.stepper.num_incomplete, "step lacks", "steps lack")
        warnings.append(f"{lacking} a worker's part")
    if fold.happenings.num_left_out:
        warnings.append(
            f"{fold.happenings.num_left_out} decisions, faults and merges are not shown: too many"
        )
    if fold.timeline.ended is None:
        warnings.append("the log has no end: the run still goes on, or was killed")
    return warnings
