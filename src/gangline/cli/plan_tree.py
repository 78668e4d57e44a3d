# SPDX-License-Identifier: Apache-2.0
"""A plan for people: the hierarchy as a tree, the reasons, the spares, and what was rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from gangline.planning.structure.treeplan import duration, size
from gangline.spec.plan import SOLO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gangline.planning.cost.serving import ServedComparison
    from gangline.planning.papers.comparison import PaperComparison
    from gangline.spec.pipelines import Layout
    from gangline.spec.plan import GroupPlan, Plan

MOST_MEMBERS = 12
MOST_GROUPS = 4
MOST_SPARES = 8


def draw_tree(plan: Plan) -> Tree:
    """The hierarchy; of many like groups or members, the first few."""
    shares = dict(zip(plan.nodes, plan.shares, strict=True))
    return _branch(plan.root, shares)


def _branch(group: GroupPlan, shares: Mapping[str, int]) -> Tree:
    tree = Tree(_headline(group))
    tree.add(Text(group.reason, style="dim"))
    for below in group.groups[:MOST_GROUPS]:
        tree.add(_branch(below, shares))
    _add_rest(tree, len(group.groups), shown=MOST_GROUPS, what="groups")
    for node in group.members[:MOST_MEMBERS]:
        mark = "  leader" if node == group.leader and len(group.members) > 1 else ""
        tree.add(Text.assemble(node, (f"  {shares[node]} samples", "cyan"), (mark, "bold")))
    _add_rest(tree, len(group.members), shown=MOST_MEMBERS, what="nodes")
    return tree


def _headline(group: GroupPlan) -> Text:
    count = len(group.speakers)
    parts: list[str | tuple[str, str]] = [(group.name, "bold"), f"  {group.topology}"]
    if group.topology != SOLO:
        kind = "groups" if group.groups else "nodes"
        parts.append(f" of {count} {kind}, led by {group.leader}")
    if group.bytes_per_s:
        parts.append(f", links {duration(group.latency_s)}, {size(group.bytes_per_s)}/s")
    return Text.assemble(*parts)


def _add_rest(tree: Tree, count: int, *, shown: int, what: str) -> None:
    if count > shown:
        tree.add(Text(f"… and {count - shown} more {what}", style="dim"))


def draw_spares(plan: Plan) -> list[Text]:
    """One line per set of spares."""
    lines = []
    for spares in plan.spares:
        shown = ", ".join(spares.nodes[:MOST_SPARES])
        more = len(spares.nodes) - MOST_SPARES
        rest = f" and {more} more" if more > 0 else ""
        lines.append(Text(f"spare: {shown}{rest}: {spares.reason}"))
    return lines


def draw_alternatives(plan: Plan) -> Table:
    """What was considered, the fastest first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("considered", overflow="fold")
    for heading in ("nodes", "groups", "compute", "exchange", "step", "times"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in plan.alternatives:
        prediction = one.prediction
        times = (prediction.compute_s, prediction.exchange_s, prediction.step_s)
        table.add_row(
            Text(one.name, style="bold" if one.name == plan.chosen else ""),
            *map(str, (one.num_nodes, one.num_groups)),
            *map(duration, times),
            f"{prediction.step_s / plan.prediction.step_s:.2f}",
        )
    return table


def draw_served(served: ServedComparison, plan: Plan) -> Table:
    """What parameter servers would take on the nodes of a plan."""
    table = Table(box=None, pad_edge=False)
    table.add_column("parameter servers")
    for heading in ("update, all at once", "update, alone", "bsp step", "asp step", "times"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in served.rows:
        times = (row.together_s, row.alone_s, row.bsp_step_s, row.asp_step_s)
        table.add_row(
            Text(str(row.servers), style="bold" if row is served.best else ""),
            *map(duration, times),
            f"{row.asp_step_s / plan.prediction.step_s:.2f}",
        )
    return table


def served_line(served: ServedComparison) -> str:
    """How many servers would be best, and what is quicker in any case."""
    best = served.best
    count = "1 server" if best.servers == 1 else f"{best.servers} servers"
    return (
        f"of parameter servers, {count} with one copy of each shard would be fastest: asp in "
        f"{duration(best.asp_step_s)} per global batch. flexible exchanges beside its computing, "
        f"{duration(served.apart_s)}: no parameter server takes less"
    )


def paper_line(compared: PaperComparison) -> str:
    """What paper 000's equations are reckoned with."""
    return (
        f"paper 000's equations with N = {compared.factor:.3g} and n·T_r = "
        f"{duration(compared.transfer_s)}, which are to hold for all groups:"
    )


def draw_paper(compared: PaperComparison) -> Table:
    """Paper 000's equations beside the cost model, for the first groups of the cluster."""
    table = Table(box=None, pad_edge=False)
    table.add_column("groups used")
    for heading in ("nodes", "equation", "paper 000", "cost model"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in compared.rows:
        table.add_row(
            f"the first {row.num_groups}" if row.num_groups else "one node alone",
            str(row.num_nodes),
            row.equation,
            duration(row.paper_s),
            "-" if row.model_s is None else duration(row.model_s),
        )
    return table


def summary_line(plan: Plan, *, planned_in_s: float) -> str:
    """The numbers that matter most."""
    prediction = plan.prediction
    rate = plan.global_batch / prediction.step_s
    return (
        f"{plan.chosen}: predicted step {duration(prediction.step_s)} "
        f"(compute {duration(prediction.compute_s)}, exchange {duration(prediction.exchange_s)}, "
        f"hidden {duration(prediction.hidden_s)}), {rate:.3g} samples/s; planned in "
        f"{duration(planned_in_s)}"
    )


def reason_lines(reasons: Sequence[str]) -> list[Text]:
    """Each decision with its reason."""
    return [Text(f"- {reason}") for reason in reasons]


def pipeline_lines(layout: Layout) -> list[str]:
    """How the model would be cut over the nodes."""
    shares = [
        f"- {' and '.join(one.machines)}: {one.share} samples of each global batch, in "
        f"{one.micro_batches} micro-batches"
        for one in layout.pipelines
    ]
    copies = [
        f"- {copy.machine} keeps a copy of the layers {copy.start} to {copy.stop - 1}"
        for copy in layout.copies
    ]
    return [f"{layout.describe()}: predicted step {duration(layout.step_s)}", *shares, *copies]
