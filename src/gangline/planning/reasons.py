# SPDX-License-Identifier: Apache-2.0
"""Why a plan is as it is: one sentence per decision, each with its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.planning.allocation.balanced import balanced, slowest_s
from gangline.planning.allocation.proportional import equal
from gangline.planning.structure.treeplan import duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.planning.cost.network import Network
    from gangline.planning.structure.candidates import Candidate
    from gangline.spec.profile import ClusterProfile
    from gangline.spec.workload import Workload

COMPUTE = "compute-bound"
MEMORY = "memory-bound"
COMMUNICATION = "communication-bound"
_MATTERS = 1.05
"""A ceiling matters if the step takes so many times as long with it as without."""


def job_kind(
    profile: ClusterProfile,
    network: Network,
    workload: Workload,
    *,
    chosen: Candidate,
    everybody: Candidate,
) -> tuple[str, str]:
    """Which resource limits the step, and the numbers that say so.

    Communication, if exchanging takes longer than computing, also where it is avoided for that reason,
    and one node works alone. Memory, if ceilings keep fast nodes from
    larger shares, or if moving the samples' bytes explains half of the time measured for computing.
    """
    cut, prediction = chosen.cut, chosen.prediction
    shared = everybody if len(cut.nodes) == 1 else chosen
    if shared.prediction.exchange_s > shared.prediction.compute_s:
        return COMMUNICATION, (
            f"{COMMUNICATION}: exchanging {size(workload.gradient_bytes)} among "
            f"{len(shared.cut.nodes)} nodes takes {duration(shared.prediction.exchange_s)}, computing "
            f"{duration(shared.prediction.compute_s)}"
        )
    fixed, per_sample = network.fixed_s[cut.nodes], network.per_sample_s[cut.nodes]
    free = balanced(workload.global_batch, fixed, per_sample, minimum=0)
    free_s = slowest_s(free, fixed, per_sample)
    full = int((cut.shares == network.max_samples[cut.nodes]).sum())
    # With none at its ceiling, it is the least share that keeps the others from more.
    if full and cut.compute_s > _MATTERS * free_s:
        nodes = "1 node gets" if full == 1 else f"{full} nodes get"
        return MEMORY, (
            f"{MEMORY}: {nodes} no more samples than fit into memory; computing takes "
            f"{duration(cut.compute_s)} and would take {duration(free_s)} with room for all"
        )
    traffic = _traffic_fraction(profile, workload, chosen)
    if traffic is not None and traffic >= 0.5:
        return MEMORY, (
            f"{MEMORY}: moving {size(workload.traffic_bytes_per_sample or 0)} per sample through "
            f"memory explains {100 * traffic:.0f} % of the time of computing"
        )
    return COMPUTE, (
        f"{COMPUTE}: computing takes {duration(prediction.compute_s)}, exchanging "
        f"{size(workload.gradient_bytes)} {duration(prediction.exchange_s)}"
    )


def _traffic_fraction(
    profile: ClusterProfile, workload: Workload, chosen: Candidate
) -> float | None:
    """Which part of computing a sample is moving its bytes, on the median node."""
    if workload.traffic_bytes_per_sample is None:
        return None
    nodes = [profile.nodes[i] for i in chosen.cut.nodes.tolist()]
    fractions = [
        workload.traffic_bytes_per_sample
        / node.memory_bytes_per_s
        / (node.per_sample_s * workload.operation_ratio)
        for node in nodes
        if node.memory_bytes_per_s is not None
    ]
    return float(np.median(fractions)) if fractions else None


def why_these_nodes(chosen: Candidate, everybody: Candidate, *, num_nodes: int) -> str:
    """How many nodes, and what all of them would cost."""
    used = len(chosen.cut.nodes)
    step = duration(chosen.prediction.step_s)
    if used == num_nodes:
        return f"all {num_nodes} nodes take part: the step is predicted at {step}"
    others_s = everybody.prediction.step_s
    if len(everybody.cut.nodes) == used:
        return (
            f"{used} of {num_nodes} nodes take part: the others would be late with their first "
            f"sample, when the whole step is predicted at {step}"
        )
    return (
        f"{used} of {num_nodes} nodes take part: the step is predicted at {step}, with "
        f"{len(everybody.cut.nodes)} nodes at {duration(others_s)} "
        f"({others_s / chosen.prediction.step_s:.2f} times as long)"
    )


def why_this_structure(chosen: Candidate, others: Sequence[Candidate]) -> str:
    """The chosen structure against the others for the same nodes."""
    times = {
        other.structure: other.prediction.exchange_s
        for other in others
        if other.structure != chosen.structure and np.array_equal(other.cut.nodes, chosen.cut.nodes)
    }
    rest = ", ".join(f"{structure} {duration(time)}" for structure, time in times.items())
    text = (
        f"{chosen.structure}, {_counted(chosen.branch.num_groups)}: the exchange takes "
        f"{duration(chosen.prediction.exchange_s)}"
    )
    return f"{text} (against {rest})" if rest else text


def _counted(groups: int) -> str:
    return "one group" if groups == 1 else f"{groups} groups"


def why_these_shares(network: Network, workload: Workload, chosen: Candidate) -> str:
    """What fitting the shares to the speeds gains."""
    cut = chosen.cut
    fixed, per_sample = network.fixed_s[cut.nodes], network.per_sample_s[cut.nodes]
    alike = equal(workload.global_batch, len(cut.nodes))
    return (
        f"shares fit speeds, from {cut.shares.min()} to {cut.shares.max()} samples: computing takes "
        f"{duration(cut.compute_s)}, with equal shares {duration(slowest_s(alike, fixed, per_sample))}"
    )


def why_hidden(workload: Workload, chosen: Candidate) -> str:
    """What overlap does, and what the step is the sum of."""
    prediction = chosen.prediction
    other = f" + {duration(prediction.other_s)} besides" if prediction.other_s else ""
    units = "1 unit" if workload.num_units == 1 else f"{workload.num_units} units"
    return (
        f"{duration(prediction.hidden_s)} of the exchange are hidden behind the backward pass "
        f"({units}, {workload.overlap:.0%} of computing): "
        f"{duration(prediction.step_s)} = {duration(prediction.compute_s)} + "
        f"{duration(prediction.exchange_s)} − {duration(prediction.hidden_s)}{other}"
    )
