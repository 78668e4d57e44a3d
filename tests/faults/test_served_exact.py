# SPDX-License-Identifier: Apache-2.0
"""What parameter servers compute, update by update, done again in plain torch in one process.

The events say which updates there were, in which order, of which samples and how stale; the workers
note which updates the parameters had that they computed with. That is all that a run may depend on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from elastic_bodies import Parts, Setup, mlp
from elastic_jobs import TOLERANCE, run_with
from elastic_served import MIXED, TABLES, Mixed, Uneven, Words, clip, uneven_sgd

from cases import quick_of
from gangline.spec.event import SamplesLeased, UpdateApplied, UpdateVoided
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome
    from torch import Tensor

    from gangline.spec.serving import Service

SETUP = Setup(samples=130, batch=12, epochs=2, allocation="balanced")
OPTIMIZERS = {
    "served_sgd": lambda model: torch.optim.SGD(
        model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01
    ),
    "served_adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.02),
}
UNEVEN = "served_uneven"
MAKERS = {
    **{loop: (mlp, make) for loop, make in OPTIMIZERS.items()},
    **{loop: (Words, make) for loop, make in TABLES.items()},
    **{loop: (Mixed, make) for loop, make in MIXED.items()},
    UNEVEN: (Uneven, uneven_sgd),
}


CHANGES = {"served_clipped": clip}
"""What loops do to their gradients."""


class Replay:
    """All updates of a run, made once more."""

    def __init__(
        self,
        outcome: Outcome,
        loop: str,
        service: Service,
        reads: dict[Any, Any] | None = None,
    ) -> None:
        """`reads`: what those have noted who did not come to their end."""
        torch.manual_seed(5)
        self._service, self._loop = service, loop
        model_of, optimizer_of = MAKERS[loop]
        self.model, self._other = model_of(), model_of()
        self.optimizer = optimizer_of(self.model)
        self.parameters = _ordered(self.optimizer)
        self._others = _ordered(optimizer_of(self._other))
        self._data = Parts(SETUP, is_alone=True).loader().dataset
        self._reads: dict[Any, Any] = {}
        for result in outcome.results.values():
            self._reads.update(result["found_after"])
        self._reads.update(reads or {})
        self._orders: dict[tuple[int, int], list[int]] = {}
        for lease in sorted(outcome.of_kind(SamplesLeased), key=lambda one: one.number):
            order = self._orders.setdefault((lease.team, lease.epoch), [])
            order += range(lease.start, lease.stop)
        self._voided = outcome.of_kind(UpdateVoided)
        self._used: dict[tuple[int, int], int] = {}
        self._versions = [self._copies()]

    def run(self, updates: list[UpdateApplied]) -> None:
        assert [one.number for one in updates] == list(range(len(updates)))
        for one in updates:
            gradients = [
                self._gradient(team, one.epoch, stop)
                for team, stop in zip(one.teams, one.offsets, strict=True)
            ]
            for place, parameter in enumerate(self.parameters):
                parts = [
                    (weight, made[place])
                    for weight, made in zip(one.weights, gradients, strict=True)
                    if made[place] is not None
                ]
                parameter.grad = _sum(parts) if parts else None
                if parts and isinstance(self.optimizer, torch.optim.Adam):
                    parameter.grad = parameter.grad.to_dense()  # as servers do for it
            slowed = 1 + one.staleness if self._service.rate == "staleness" else 1
            _, rates = self._reads[one.teams[-1], one.epoch, one.offsets[-1]]
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate / slowed
            self.optimizer.step()
            self._versions.append(self._copies())

    def _copies(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.parameters]

    def _gradient(self, team: int, epoch: int, stop: int) -> list[Tensor | None]:
        """That of a team's samples, at what it had pulled; compensated for what came since."""
        start = self._used.get((team, epoch), 0)
        late = [one for one in self._voided if (one.team, one.epoch) == (team, epoch)]
        start = max([start, *(one.stop for one in late if one.stop < stop)])
        self._used[team, epoch] = stop
        read, _ = self._reads[team, epoch, stop]
        for shard, indices in enumerate(self._reads["indices"]):
            for index in indices:
                value = self._versions[read[shard] if read else 0][index]
                self._others[index].data.copy_(value)
        rows = [self._data[index] for index in self._orders[team, epoch][start:stop]]
        x, y = (torch.stack([row[column] for row in rows]) for column in (0, 1))
        self._other.zero_grad()
        F.cross_entropy(self._other(x), y).backward()
        CHANGES.get(self._loop, lambda _: None)(self._others)
        factor = self._service.compensation
        return [
            other.grad
            if other.grad is None or not factor
            else other.grad + factor * other.grad**2 * (now - other).detach()
            for other, now in zip(self._others, self.parameters, strict=True)
        ]


def _ordered(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _sum(parts: list[tuple[float, Tensor]]) -> Tensor:
    """Short types are summed in float32 and rounded once, as servers do."""
    kind = parts[0][1].dtype
    wide = torch.float32 if kind == torch.bfloat16 else kind
    first, *others = [weight * gradient.to(wide) for weight, gradient in parts]
    return sum(others, first).to(kind)


def staleness_of(outcome: Outcome, update: UpdateApplied) -> int:
    """How many updates the parameters of the stalest shard lacked that an update was made from."""
    (team,), (stop,) = update.teams, update.offsets
    reads = [one["found_after"].get((team, update.epoch, stop)) for one in outcome.results.values()]
    (read,) = [one for one in reads if one is not None]
    return update.number - min(read[0], default=0)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("mode", "loop"),
    quick_of(
        [
            (f"{kind}{options}", loop)
            for kind in ("bsp(", "asp(", "ssp(1, ", "backup(1, ")
            for options in ("servers=1)", "servers=2)")
            for loop in OPTIMIZERS
        ]
        + [
            (f"{kind}{options})", loop)
            for kind in ("asp(", "ssp(2, ")
            for options in (
                "rate=staleness",
                "compensation=0.5",
                "scale=plain",
                "servers=2, rate=staleness, compensation=0.5",
            )
            for loop in OPTIMIZERS
        ]
        + [(mode, loop) for mode in ("asp", "bsp", "ssp(1)") for loop in (*TABLES, *MIXED)]
        + [(mode, UNEVEN) for mode in ("asp", "bsp", "ssp(1, servers=2)", "backup(1)")],
        quick=[
            ("bsp(servers=1)", "served_sgd"),
            ("asp(servers=2, rate=staleness, compensation=0.5)", "served_adam"),
            ("ssp(1, servers=2)", UNEVEN),
            ("asp", "rows_adam"),
        ],
    ),
)
def test_servers_compute_what_one_process_makes_of_the_same_updates(
    tmp_path: Path, mode: str, loop: str
) -> None:
    sync = parse_sync(mode)
    assert sync.service is not None
    setup = Setup(**{**vars(SETUP), "loop": loop, "slow_worker": 1})
    outcome = run_with(tmp_path, setup, [], sync=sync)
    assert outcome.exit_codes == [0] * 3, outcome.outputs
    updates = sorted(outcome.of_kind(UpdateApplied), key=lambda one: one.number)
    if not sync.service.consistency.has_rounds:
        assert [one.staleness for one in updates] == [staleness_of(outcome, one) for one in updates]
    if str(sync.service.consistency) == "bsp":
        _assert_full_rounds(updates)
    replay = Replay(outcome, loop, sync.service)
    assert_replayed(replay, updates, outcome.results[0]["state"])


def assert_replayed(replay: Replay, updates: list[UpdateApplied], state: dict[str, Tensor]) -> None:
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # torch wants it to be said
        replay.run(updates)
    for name, expected in replay.model.named_parameters():
        _assert_close(state[f"0.{name}"], expected.data)
    for index, parameter in enumerate(replay.parameters):
        for key, value in replay.optimizer.state.get(parameter, {}).items():
            if value is not None:
                _assert_close(state[f"opt0.{index}.{key}"], value)


def _assert_close(found: Tensor, given: Any) -> None:
    expected = torch.as_tensor(given)
    tolerance = 0.02 if expected.dtype == torch.bfloat16 else TOLERANCE
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def _assert_full_rounds(updates: list[UpdateApplied]) -> None:
    """Nobody goes on alone while another team still has samples: who is missing comes no more."""
    for epoch in range(SETUP.epochs):
        sizes = [len(one.teams) for one in updates if one.epoch == epoch]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == 3
