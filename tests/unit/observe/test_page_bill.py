# SPDX-License-Identifier: Apache-2.0
"""The bill of a run, who was away, structures, and comparisons."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from synthetic_run import START, SyntheticRun

import gangline
from gangline.frontend import FrontendMissingError, asset, script_json
from gangline.observe.page import Price, compare_folders, make_page
from gangline.observe.page.accounts import Accounts
from gangline.observe.page.bill import amount, make_bill, node_hours
from gangline.observe.page.columns import Columns
from gangline.observe.page.fold import fold_events
from gangline.observe.page.presence import Presence
from gangline.observe.page.trees import parse_structure
from gangline.spec.event import Decision, ViewAdopted, WorkerEnded, WorkerReady
from gangline.spec.exchange.structure import Structure

if TYPE_CHECKING:
    from pathlib import Path


def accounts_of(run: SyntheticRun) -> Accounts:
    return Accounts(fold_events(run.end().events))


def slow_last(steps: int = 100) -> SyntheticRun:
    return SyntheticRun([0.01, 0.01, 0.03]).run_steps(steps, shares=[10, 10, 10])


def test_the_slow_one_heads_the_bill_with_advice() -> None:
    bill = make_bill(accounts_of(slow_last()), Price(per_hour=3600))
    first = bill.items[0]
    assert (first.kind, first.worker) == ("wait", 2)
    assert first.node_s == pytest.approx(100 * 2 * 0.2)
    assert first.money == pytest.approx(first.node_s)  # one per second
    assert first.text.startswith("n2 made the others wait 63 % of the time: 40 node-seconds (€ 40")
    assert "--allocation balanced" in first.advice
    assert "0.33 times" in first.advice


def test_the_bill_adds_up() -> None:
    run = slow_last()
    bill = make_bill(accounts_of(run), Price(per_hour=1.0))
    assert bill.node_s == pytest.approx(3 * (run.now - START))
    small = bill.node_s * 0.005  # what is too small to be listed
    assert bill.useful_s + sum(item.node_s for item in bill.items) == pytest.approx(
        bill.node_s, abs=small
    )
    assert bill.money == pytest.approx(bill.node_s / 3600)
    assert [item.node_s for item in bill.items] == sorted(
        (item.node_s for item in bill.items), reverse=True
    )


def test_many_that_are_waited_for_a_little_are_one_line() -> None:
    run = SyntheticRun([0.01] * 20)
    for last in range(20):
        run.per_sample_s = [0.0105 if worker == last else 0.01 for worker in range(20)]
        run.run_steps(1, shares=[10] * 20)
    bill = make_bill(accounts_of(run), Price())
    waits = [item for item in bill.items if item.kind == "wait"]
    assert [item.text.split(",")[0] for item in waits] == ["Waiting for 20 workers"]
    assert waits[0].node_s == pytest.approx(20 * 19 * 0.005, rel=1e-3)


def test_nodes_have_prices_of_their_own_and_may_have_none() -> None:
    accounts = accounts_of(slow_last())
    dear = make_bill(accounts, Price(per_hour=1.0, of_node={"n2": 10.0}))
    assert dear.money == pytest.approx(dear.node_s / 3 / 3600 * 12)
    free = make_bill(accounts, Price())
    assert free.money is None
    assert "€" not in free.items[0].text


@pytest.mark.parametrize(
    ("node_s", "said"),
    [(11_520, "3.2 node-hours"), (300, "5.0 node-minutes"), (1.5, "1.5 node-seconds")],
)
def test_time_of_machines_has_the_unit_that_fits(node_s: float, said: str) -> None:
    assert node_hours(node_s) == said


def test_small_money_is_not_nothing() -> None:
    assert amount(0.00123, "$") == "$ 0.0012"
    assert amount(1234.5, "€") == "€ 1,234.50"


def view(number: int, members: list[int], t: float) -> ViewAdopted:
    return ViewAdopted(
        t=t, view=number, step=0, members=members, shares=[1] * len(members), reason=""
    )


def test_who_is_put_out_is_a_spare_and_who_ended_is_down() -> None:
    presence = Presence()
    for event in (
        view(0, [0, 1, 2], 0.0),
        WorkerEnded(t=2.0, worker=2, exit_code=None, signal="SIGKILL", reason=""),
        view(1, [0], 3.0),
        view(2, [0, 1], 5.0),
        WorkerReady(t=6.0, worker=2, device="cpu", threads=1, torch="", parameters=1, transport=""),
    ):
        presence.add(event)
    presence.finish(10.0)
    assert {(one.worker, one.why, one.begin, one.end) for one in presence.absences} == {
        (1, "spare", 3.0, 5.0),
        (2, "down", 2.0, 6.0),
    }


@pytest.mark.parametrize(
    "structure",
    [
        Structure.flat([3, 1, 2]),
        Structure(topology="parameter-server", leader=1, members=(0, 1, 2)),
        Structure(
            topology="parameter-server",
            leader=2,
            groups=(
                Structure(topology="ring", leader=0, members=(0, 1), compression="8-bit"),
                Structure(topology="ring", leader=2, members=(2, 3)),
            ),
        ),
    ],
)
def test_a_structure_is_read_back_from_its_line(structure: Structure) -> None:
    def plain(one: Structure) -> dict[str, Any]:
        return {
            "topology": one.topology,
            "leader": one.leader,
            "compression": one.compression,
            "members": list(one.members),
            "groups": [plain(group) for group in one.groups],
        }

    assert parse_structure(str(structure), lambda worker: worker) == plain(structure)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("text", ["ring(", "star(1, 2)", "ring(1; 2)", "ring(1) more", "ring()"])
def test_what_is_no_structure_is_none(text: str) -> None:
    assert parse_structure(text, lambda worker: {"worker": worker}) is None


def test_columns_lie_where_they_say() -> None:
    columns = Columns()
    columns.add([1, 2, 3], "u1")
    kind, offset, length = columns.add([0.5, np.nan], "f8")["$"]
    raw = zlib.decompress(base64.b64decode(columns.packed()))
    values = np.frombuffer(raw, dtype=np.float64, count=length, offset=offset)
    assert (kind, offset % 8) == ("f8", 0)
    assert values[0] == 0.5
    assert np.isnan(values[1])


def test_nothing_in_json_ends_the_script_that_it_stands_in() -> None:
    text = script_json({"name": "</script><!-- & \u2028"})
    assert not set("<>&\u2028") & set(text)


def test_what_is_not_installed_is_named_with_the_cure() -> None:
    with pytest.raises(FrontendMissingError, match="make frontend"):
        asset("vendor/no-such-library.js")


def test_a_page_has_the_names_as_text_only(tmp_path: Path) -> None:
    run = slow_last(10)
    numbers = {"step": 1.0}
    run.events.append(
        Decision(t=run.now, what="</script><b>", reason="<img src=x>", numbers=numbers)
    )
    page = make_page(run.end().write(tmp_path / "run"))
    assert "Permission is hereby granted" in page  # the licence of what is shipped in it
    assert "<b>" not in page
    assert "<img" not in page


def test_runs_are_compared_with_the_first(tmp_path: Path) -> None:
    slow = slow_last(200).end().write(tmp_path / "slow")
    fast = SyntheticRun([0.01, 0.01, 0.01]).run_steps(200, shares=[10, 10, 10]).end()
    comparison, page = compare_folders([slow, fast.write(tmp_path / "fast")])
    lines = {line.label: line for line in comparison.lines}
    ratio = lines["samples/s"].ratios[1]
    assert ratio is not None
    assert ratio.value == pytest.approx((0.3 + 0.015) / (0.1 + 0.015), rel=1e-3)
    assert ratio.low == pytest.approx(ratio.value, rel=1e-3)  # the steps are all alike
    assert page == ""
    assert lines["samples/s"].ratios[0] is None


def test_a_notebook_gets_a_frame_and_a_terminal_the_bill(tmp_path: Path) -> None:
    run_dir = slow_last().end().write(tmp_path / "run")
    found = gangline.report(run_dir, price=0.6)
    assert "n2 made the others wait 63 % of the time" in repr(found)
    shown = found._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "<script" not in shown  # escaped, inside the attribute
    found.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == found.html
