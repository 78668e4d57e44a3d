# SPDX-License-Identifier: Apache-2.0
"""Paper 000's equations beside the cost model, for the groups of one cluster.

The groups are put in the order of what a sample costs on their nodes, as the paper's are. Then

- m, the jobs, are the samples of a global batch;
- N, the factor from one group to the next, is the geometric mean of those that there are, 1 for one
  group or like ones;
- the unit of time is such that a sample costs N on a node of the first group;
- n·T_r, the transfer, is one message of all gradients over the worst link of the first group.

The model's figure is that of the best structure in which all nodes of these groups take part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.planning.cost.grouplinks import group_links
from gangline.planning.cost.network import message_bytes, resolve
from gangline.planning.papers import paper000
from gangline.planning.planner import PlanOptions, make_plan
from gangline.planning.restricting import restricted
from gangline.planning.structure.grouping import by_links, units
from gangline.planning.structure.leftovers import find_usable
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.planning.cost.network import Network
    from gangline.planning.structure.nest import NodeNumbers
    from gangline.spec.profile import ClusterProfile
    from gangline.spec.workload import Workload

MOST_GROUPS = 8
"""So many groups are compared: N to the power of their number soon is beyond all numbers."""


class PaperRow(NamedTuple):
    """One option: how many groups to use."""

    num_groups: int
    """0: one node alone."""
    num_nodes: int
    equation: str
    paper_s: float
    model_s: float | None
    """None where the batch does not fit into the memory of these nodes."""


class PaperComparison(NamedTuple):
    """The options, and what they were reckoned with."""

    factor: float
    """N."""
    transfer_s: float
    """n·T_r."""
    rows: tuple[PaperRow, ...]


def compare_with_paper(profile: ClusterProfile, workload: Workload) -> PaperComparison:
    """Equations 1 to 5 for the first 1, 2, … groups of a cluster, beside the cost model."""
    network = resolve(profile, workload)
    groups = _groups(profile, network, workload)
    costs = [float(np.median(network.per_sample_s[group])) for group in groups]
    steps = max(len(groups) - 1, 1)
    factor = max(1.0, (costs[-1] / costs[0]) ** (1 / steps))
    ratio = workload.operation_ratio
    unit_s = costs[0] / ratio / factor
    transfer_s = _transfer_s(network, groups, workload)
    sizes = [len(group) for group in groups]

    def row(count: int) -> PaperRow:
        if count == 0:
            nodes = groups[0][np.argsort(network.per_sample_s[groups[0]])][:1]
            cost = paper000.serial(workload.global_batch, factor, operation_ratio=ratio)
        else:
            nodes = np.concatenate(groups[:count])
            cost = paper000.parallel(
                workload.global_batch,
                sizes[:count],
                cost=factor,
                transfer=transfer_s / unit_s,
                operation_ratio=ratio,
            )
        return PaperRow(
            num_groups=count,
            num_nodes=len(nodes),
            equation=_equation(count),
            paper_s=cost * unit_s,
            model_s=_model_s(profile, workload, nodes),
        )

    rows = tuple(row(count) for count in range(len(groups) + 1))
    return PaperComparison(factor=factor, transfer_s=transfer_s, rows=rows)


def _groups(profile: ClusterProfile, network: Network, workload: Workload) -> list[NodeNumbers]:
    usable, _ = find_usable(profile, network, workload)
    nest = by_links(network, usable, num_bytes=message_bytes(workload))
    found = units(nest, network.per_sample_s)
    found.sort(key=lambda group: float(np.median(network.per_sample_s[group])))
    return found[:MOST_GROUPS]


def _transfer_s(network: Network, groups: list[NodeNumbers], workload: Workload) -> float:
    first = groups[0] if len(groups[0]) > 1 else np.concatenate(groups)
    link = group_links(network, first, num_bytes=message_bytes(workload)).ring
    return link.latency_s + workload.gradient_bytes * workload.compression * link.s_per_byte


def _model_s(profile: ClusterProfile, workload: Workload, nodes: NodeNumbers) -> float | None:
    part = restricted(profile, [profile.nodes[i] for i in np.sort(nodes).tolist()])
    options = PlanOptions(everybody=True)
    try:
        plan = make_plan(part, workload, rng=np.random.default_rng(0), options=options)
    except UsageError:
        return None
    return plan.prediction.step_s


def _equation(count: int) -> str:
    return ("serial", "(1)", "(2)", "(3)")[count] if count <= 3 else "(4), (5)"
