# SPDX-License-Identifier: Apache-2.0
"""Who cannot take part, who need not, and why: the spares of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.planning.structure.candidates import BY_GROUPS
from gangline.planning.structure.treeplan import duration, size
from gangline.spec.errors import UsageError
from gangline.spec.plan import Spares

if TYPE_CHECKING:
    from gangline.planning.cost.network import Network
    from gangline.planning.structure.candidates import Candidate, Evaluator
    from gangline.planning.structure.nest import Nest, NodeNumbers
    from gangline.spec.profile import ClusterProfile
    from gangline.spec.workload import Workload

MOST_EXPLAINED = 5
"""Up to so many groups are explained one by one."""


class Refusals(NamedTuple):
    """Nodes that no plan could use, and what was done about the batch."""

    spares: tuple[Spares, ...] = ()
    sentences: tuple[str, ...] = ()


def find_usable(
    profile: ClusterProfile, network: Network, workload: Workload
) -> tuple[NodeNumbers, Refusals]:
    """The nodes that can hold the model and reach each other."""
    fits = network.max_samples >= 1
    spares, sentences = [], []
    if not fits.any():
        most = max(node.memory_bytes or 0.0 for node in profile.nodes)
        raise UsageError(
            f"no node can hold the model: it needs {size(workload.resident_bytes)} and "
            f"{size(workload.sample_bytes)} per sample, and the largest node has {size(most)}; use a "
            "smaller model, or give nodes with more memory"
        )
    if not fits.all():
        too_small = np.flatnonzero(~fits)
        sentence = (
            f"{len(too_small)} nodes cannot hold the model and one sample, which need "
            f"{size(workload.resident_bytes + workload.sample_bytes)}"
        )
        spares.append(Spares(nodes=_names(network, too_small), reason=sentence))
        sentences.append(sentence)
    usable, cut_off = _strongest_component(network, np.flatnonzero(fits))
    if len(cut_off):
        sentence = (
            f"the cluster is not connected: {len(cut_off)} nodes have no link to the "
            f"{len(usable)} that can compute most together"
        )
        spares.append(Spares(nodes=_names(network, cut_off), reason=sentence))
        sentences.append(sentence)
    if workload.global_batch < len(usable) * workload.minimum_share:
        sentences.append(
            f"a batch of {workload.global_batch} feeds at most "
            f"{workload.global_batch // workload.minimum_share or 1} of {len(usable)} nodes"
        )
    return usable, Refusals(tuple(spares), tuple(sentences))


def name_spares(
    network: Network,
    refusals: Refusals,
    *,
    nest: Nest,
    chosen: Candidate,
    evaluator: Evaluator,
) -> tuple[Spares, ...]:
    """Those that could take part and do not, group by group, with what they would cost."""
    is_used = np.zeros(len(network.names), dtype=bool)
    is_used[chosen.cut.nodes] = True
    left = [leaf.members[~is_used[leaf.members]] for leaf in nest.leaves()]
    left = [members for members in left if len(members)]
    if len(left) > MOST_EXPLAINED:
        left = [np.sort(np.concatenate(left))]
    return refusals.spares + tuple(
        Spares(
            nodes=_names(network, members),
            reason=_why_spare(network, members, chosen=chosen, evaluator=evaluator),
        )
        for members in left
    )


def _why_spare(
    network: Network, members: NodeNumbers, *, chosen: Candidate, evaluator: Evaluator
) -> str:
    step_s = chosen.prediction.step_s
    with_them = evaluator.cut(np.concatenate((chosen.cut.nodes, members)))
    if not np.isin(members, with_them.nodes).any():
        first_s = float(network.cost_at(1.0)[members].min())
        return (
            f"no sample would be done sooner here: the first one takes {duration(first_s)}, "
            f"the others are done with all of theirs after {duration(chosen.cut.compute_s)}"
        )
    candidate = evaluator.candidate(BY_GROUPS, with_them, crowd="with these")
    longer = candidate.prediction.step_s
    return (
        f"with these the step would take {duration(longer)} instead of {duration(step_s)}: computing "
        f"{duration(candidate.prediction.compute_s)} instead of {duration(chosen.cut.compute_s)}, "
        f"exchanging {duration(candidate.prediction.exchange_s)} instead of "
        f"{duration(chosen.prediction.exchange_s)}"
    )


def _strongest_component(network: Network, nodes: NodeNumbers) -> tuple[NodeNumbers, NodeNumbers]:
    """The connected nodes that compute most, and those that are not connected to them."""
    component = network.places.components()[nodes]
    labels, inverse = np.unique(component, return_inverse=True)
    if len(labels) == 1:
        return nodes, nodes[:0]
    power = np.bincount(inverse.reshape(-1), weights=1 / network.per_sample_s[nodes])
    is_in = inverse.reshape(-1) == int(np.argmax(power))
    return nodes[is_in], nodes[~is_in]


def _names(network: Network, nodes: NodeNumbers) -> tuple[str, ...]:
    return tuple(network.names[i] for i in nodes.tolist())
