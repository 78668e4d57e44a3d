# SPDX-License-Identifier: Apache-2.0
"""From a profile and a workload to a plan: `make_plan`."""

from __future__ import annotations

import msgspec
import numpy as np

from gangline.planning import reasons
from gangline.planning.cost.network import Network, message_bytes, resolve
from gangline.planning.papers.grouping import by_algorithm_1
from gangline.planning.structure.arrange import Job
from gangline.planning.structure.candidates import (
    BY_GROUPS,
    EVERYBODY,
    FLAT_RING,
    FLAT_SERVER,
    RANDOM,
    SQUARE_ROOT,
    Candidate,
    Evaluator,
)
from gangline.planning.structure.grouping import by_links, units
from gangline.planning.structure.leftovers import Refusals, find_usable, name_spares
from gangline.planning.structure.nest import Nest, NodeNumbers
from gangline.planning.structure.search import FEW_UNITS, Search, find_crowd
from gangline.planning.structure.treeplan import TreeBuilder
from gangline.spec.errors import UsageError
from gangline.spec.plan import TOPOLOGIES, Alternative, Plan
from gangline.spec.profile import ClusterProfile
from gangline.spec.workload import Workload

GROUPINGS = ("robust", "paper")
AUTO = "auto"
STRUCTURES = {
    AUTO: None,
    "by-groups": BY_GROUPS,
    "flat-ring": FLAT_RING,
    "flat-server": FLAT_SERVER,
    "square-root": SQUARE_ROOT,
    "random": RANDOM,
}
"""What a structure is called when it is asked for, and in a plan."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan is made."""

    grouping: str = "robust"
    """`robust`: by gaps between magnitudes; `paper`: paper 000's algorithm 1."""
    structure: str = AUTO
    """`auto`: what the cost model says; otherwise one of `STRUCTURES`."""
    topologies: tuple[str, ...] = ("ring", "parameter-server")
    """What a group may use."""
    everybody: bool = False
    """Whether all nodes that can take part do, also where fewer would be faster."""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("grouping", self.grouping, GROUPINGS),
            ("structure", self.structure, tuple(STRUCTURES)),
            *(("topology", topology, TOPOLOGIES) for topology in self.topologies),
        ):
            if value not in known:
                raise UsageError(f"no {what} {value!r}; there are {', '.join(known)}")
        if not self.topologies:
            raise UsageError(f"a plan needs a topology; there are {', '.join(TOPOLOGIES)}")


def make_plan(
    profile: ClusterProfile,
    workload: Workload,
    *,
    rng: np.random.Generator,
    options: PlanOptions | None = None,
) -> Plan:
    """The structure, nodes and shares that should train fastest; `rng` draws random formations."""
    options = options or PlanOptions()
    network = resolve(profile, workload)
    usable, refusals = find_usable(profile, network, workload)
    cost_s = network.cost_at(max(1.0, workload.global_batch / len(usable)))
    evaluator, nest, best = min(
        (
            _search(network, usable, workload, options, cost_s=cost_s, num_bytes=num_bytes)
            for num_bytes in _message_sizes(workload, len(usable))
        ),
        key=lambda found: found[2].rank,
    )
    candidates = _candidates(evaluator, best, nest=nest, cost_s=cost_s, rng=rng)
    wanted = STRUCTURES[options.structure]
    least = len(best.cut.nodes) if options.everybody else 1
    fitting = [c for c in candidates if wanted is None or c.asked == wanted]
    chosen = min((c for c in fitting if len(c.cut.nodes) >= least), key=lambda c: c.rank)
    everybody = next(c for c in candidates if c.crowd == EVERYBODY)
    return _assemble(
        _Findings(
            profile=profile,
            network=network,
            workload=workload,
            options=options,
            refusals=refusals,
            nest=nest,
            evaluator=evaluator,
            chosen=chosen,
            everybody=everybody,
            candidates=candidates,
        )
    )


def _message_sizes(workload: Workload, num_nodes: int) -> list[float]:
    """For messages of which sizes nodes are grouped: which of them are near each other depends on it.

    Among few nodes the size of the whole gradient may give better groups than that of a message.
    """
    sizes = [message_bytes(workload)]
    if num_nodes <= FEW_UNITS and workload.gradient_bytes != sizes[0]:
        sizes.append(float(workload.gradient_bytes))
    return sizes


def _search(
    network: Network,
    usable: NodeNumbers,
    workload: Workload,
    options: PlanOptions,
    *,
    cost_s: np.ndarray[tuple[int], np.dtype[np.float64]],
    num_bytes: float,
) -> tuple[Evaluator, Nest, Candidate]:
    """The best nodes and structure, where nodes are grouped for messages of this size."""
    nest = _group(network, usable, grouping=options.grouping, num_bytes=num_bytes)
    evaluator = Evaluator(
        network, workload, nest=nest, topologies=options.topologies, keeps_all=options.everybody
    )
    search = Search(evaluator)
    if options.everybody:
        return evaluator, nest, search.consider(usable, crowd=EVERYBODY)
    return evaluator, nest, find_crowd(search, network, nest, cost_s=cost_s)


class _Findings(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Everything that was found out on the way to a plan."""

    profile: ClusterProfile
    network: Network
    workload: Workload
    options: PlanOptions
    refusals: Refusals
    nest: Nest
    evaluator: Evaluator
    chosen: Candidate
    everybody: Candidate
    candidates: list[Candidate]


def _group(network: Network, nodes: NodeNumbers, *, grouping: str, num_bytes: float) -> Nest:
    group = by_algorithm_1 if grouping == "paper" else by_links
    return group(network, nodes, num_bytes=num_bytes)


def _candidates(
    evaluator: Evaluator,
    best: Candidate,
    *,
    nest: Nest,
    cost_s: np.ndarray[tuple[int], np.dtype[np.float64]],
    rng: np.random.Generator,
) -> list[Candidate]:
    """What is compared in the end: every structure for the best nodes and for all of them, and more."""
    everybody = np.concatenate([leaf.members for leaf in nest.leaves()])
    crowds = [(EVERYBODY, everybody)]
    if len(best.cut.nodes) < len(everybody):
        crowds.insert(0, (f"{len(best.cut.nodes)} of {len(everybody)} nodes", best.cut.nodes))
    found = []
    for crowd, nodes in crowds:
        cut = evaluator.cut(nodes)
        found += [
            evaluator.candidate(structure, cut, crowd=crowd, rng=rng)
            for structure in (BY_GROUPS, FLAT_RING, FLAT_SERVER, SQUARE_ROOT, RANDOM)
        ]
    strongest = max(units(nest, cost_s), key=lambda unit: float((1 / cost_s[unit]).sum()))
    fastest = everybody[np.argmin(cost_s[everybody])][None]
    for crowd, nodes in (("the strongest group alone", strongest), ("one node alone", fastest)):
        if evaluator.can_hold(nodes):
            found.append(evaluator.candidate(BY_GROUPS, evaluator.cut(nodes), crowd=crowd))
    return found


def _assemble(found: _Findings) -> Plan:
    network, workload, chosen = found.network, found.workload, found.chosen
    job = Job(num_bytes=message_bytes(workload), num_units=workload.num_units)
    root = TreeBuilder(network, job).build(chosen.branch)
    share_of = dict(
        zip(
            [network.names[i] for i in chosen.cut.nodes.tolist()],
            chosen.cut.shares.tolist(),
            strict=True,
        )
    )
    nodes = tuple(name for leaf in root.leaves() for name in leaf.members)
    kind, why_kind = reasons.job_kind(
        found.profile, network, workload, chosen=chosen, everybody=found.everybody
    )
    return Plan(
        nodes=nodes,
        shares=tuple(share_of[name] for name in nodes),
        root=root,
        prediction=chosen.prediction,
        kind=kind,
        grouping=found.options.grouping,
        chosen=chosen.name,
        reasons=(
            why_kind,
            reasons.why_these_nodes(chosen, found.everybody, num_nodes=len(network.names)),
            reasons.why_this_structure(chosen, found.candidates),
            reasons.why_these_shares(network, workload, chosen),
            reasons.why_hidden(workload, chosen),
            *found.refusals.sentences,
        ),
        spares=name_spares(
            network, found.refusals, nest=found.nest, chosen=chosen, evaluator=found.evaluator
        ),
        alternatives=_alternatives(found.candidates),
    )


def _alternatives(candidates: list[Candidate]) -> tuple[Alternative, ...]:
    """The candidates, the fastest first; the same structure for the same nodes is shown once."""
    shown: dict[tuple[str, bytes], Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: c.rank):
        shown.setdefault((candidate.structure, candidate.cut.nodes.tobytes()), candidate)
    return tuple(candidate.summary() for candidate in shown.values())
