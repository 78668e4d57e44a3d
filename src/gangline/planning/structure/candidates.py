# SPDX-License-Identifier: Apache-2.0
"""Candidates for a plan: who takes part, in which structure, and what the cost model says to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.planning.allocation.balanced import balanced, slowest_s
from gangline.planning.allocation.bounds import Shares
from gangline.planning.cost.branches import Branch, Coster
from gangline.planning.cost.grouplinks import LinkBook
from gangline.planning.cost.model import predict_step
from gangline.planning.cost.network import Network, message_bytes
from gangline.planning.structure.arrange import Job, Style
from gangline.planning.structure.nest import Nest, NodeNumbers, flat, square_root
from gangline.planning.structure.nest import drawn as drawn_nest
from gangline.spec.errors import UsageError
from gangline.spec.plan import Alternative, Prediction

if TYPE_CHECKING:
    from gangline.spec.workload import Workload

BY_GROUPS = "by groups"
FLAT_RING = "flat ring"
FLAT_SERVER = "flat parameter server"
SQUARE_ROOT = "square root of n"
RANDOM = "random formation"
ALONE = "no exchange"
EVERYBODY = "all nodes"


class Cut(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The nodes that take part, and the batch cut among them."""

    nodes: NodeNumbers
    shares: Shares
    compute_s: float


class Candidate(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One structure for one set of nodes, with what it should cost."""

    asked: str
    """The structure that was asked for."""
    structure: str
    """What came of it: one group of one level is flat, whatever was asked for."""
    crowd: str
    """Which nodes, in words."""
    cut: Cut
    branch: Branch
    prediction: Prediction

    @property
    def name(self) -> str:
        return f"{self.structure}, {self.crowd}"

    @property
    def rank(self) -> tuple[float, int, int]:
        """The fastest first; of equals, the one with fewer nodes and groups."""
        return self.prediction.step_s, len(self.cut.nodes), self.branch.num_groups

    def summary(self) -> Alternative:
        """What a plan says of it."""
        return Alternative(
            name=self.name,
            num_nodes=len(self.cut.nodes),
            num_groups=self.branch.num_groups,
            prediction=self.prediction,
        )


def cut_batch(
    network: Network, workload: Workload, nodes: NodeNumbers, *, keeps_all: bool = False
) -> Cut:
    """The batch among these nodes, or among those of them that help to finish it sooner.

    Cut with no minimum, the optimum gives nothing to a node that would be late with one sample:
    such a node takes no part, unless all shall be kept.
    """
    total, least = workload.global_batch, workload.minimum_share
    nodes = np.sort(nodes)
    fixed, per_sample = network.fixed_s[nodes], network.per_sample_s[nodes]
    most = network.max_samples[nodes]
    room = int(most.sum())
    if room < total:
        raise UsageError(
            f"a batch of {total} samples does not fit: the memory of the {len(nodes)} nodes that can "
            f"hold the model has room for {room}; lower global_batch, or add nodes"
        )
    if keeps_all:
        minimum = np.minimum(least if least * len(nodes) <= total else 0, most)
        shares = balanced(total, fixed, per_sample, minimum=minimum, maximum=most)
        return Cut(nodes=nodes, shares=shares, compute_s=slowest_s(shares, fixed, per_sample))
    shares = balanced(total, fixed, per_sample, minimum=0, maximum=most)
    is_used = shares >= least
    if not is_used.any():
        is_used[np.argmin(fixed + per_sample * least)] = True
    if most[is_used].sum() < total:
        is_used = shares > 0
    if least > 1:
        again = (fixed[is_used], per_sample[is_used])
        minimum = np.minimum(least, most[is_used])
        shares[is_used] = balanced(total, *again, minimum=minimum, maximum=most[is_used])
        is_used &= shares > 0
    return Cut(
        nodes=nodes[is_used],
        shares=shares[is_used],
        compute_s=slowest_s(shares[is_used], fixed[is_used], per_sample[is_used]),
    )


def _what_it_is(branch: Branch, *, asked: str) -> str:
    levels = branch.arrangement.levels
    if branch.branches or len(levels) > 1:
        return asked
    if len(branch.members) == 1:
        return ALONE
    return {"ring": FLAT_RING, "parameter-server": FLAT_SERVER}.get(
        levels[0].topology, f"flat {levels[0].topology}"
    )


class Evaluator:
    """Predicts candidates; nests are restricted to the nodes that take part."""

    def __init__(
        self,
        network: Network,
        workload: Workload,
        *,
        nest: Nest,
        topologies: tuple[str, ...],
        keeps_all: bool = False,
    ) -> None:
        job = Job(num_bytes=message_bytes(workload), num_units=workload.num_units)
        book = LinkBook(network, num_bytes=job.num_bytes)
        self._network = network
        self._workload = workload
        self._nest = nest
        self._keeps_all = keeps_all
        styles = {
            BY_GROUPS: Style(topologies=topologies),
            FLAT_RING: Style(topologies=("ring",), may_split=False),
            FLAT_SERVER: Style(topologies=("parameter-server",), may_split=False),
            SQUARE_ROOT: Style(topologies=topologies, may_split=False),
            RANDOM: Style(topologies=topologies, may_split=False),
        }
        self._costers = {
            name: Coster(network, style, job, book=book) for name, style in styles.items()
        }

    def can_hold(self, nodes: NodeNumbers) -> bool:
        """Whether the batch fits into the memory of these nodes."""
        return int(self._network.max_samples[nodes].sum()) >= self._workload.global_batch

    def cut(self, nodes: NodeNumbers) -> Cut:
        """The batch among these nodes."""
        return cut_batch(self._network, self._workload, nodes, keeps_all=self._keeps_all)

    def candidate(
        self, structure: str, cut: Cut, *, crowd: str, rng: np.random.Generator | None = None
    ) -> Candidate:
        """One structure for the nodes of a cut; `rng` forms random groups."""
        coster = self._costers[structure]
        branch = coster.cost(self._nest_of(structure, cut.nodes, rng))
        codec_s = 0.0
        if len(cut.nodes) > 1:
            codec_s = self._workload.gradient_bytes * self._workload.codec_s_per_byte
        exchange_s = coster.exchange_s(branch) + codec_s
        return Candidate(
            asked=structure,
            structure=_what_it_is(branch, asked=structure),
            crowd=crowd,
            cut=cut,
            branch=branch,
            prediction=predict_step(
                cut.compute_s,
                exchange_s,
                overlap=self._workload.overlap,
                num_units=self._workload.num_units,
                other_s=self._workload.other_s,
            ),
        )

    def _nest_of(self, structure: str, nodes: NodeNumbers, rng: np.random.Generator | None) -> Nest:
        if structure == BY_GROUPS:
            is_used = np.zeros(len(self._network.names), dtype=bool)
            is_used[nodes] = True
            return self._nest.restricted(is_used) or flat(nodes)
        if structure == SQUARE_ROOT:
            return square_root(
                nodes[np.argsort(self._network.places.of_node[nodes], kind="stable")]
            )
        if structure == RANDOM:
            return drawn_nest(nodes, rng=rng or np.random.default_rng(0))
        return flat(nodes)
