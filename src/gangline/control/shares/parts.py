# SPDX-License-Identifier: Apache-2.0
"""How the global batch is divided among teams that train at their own pace.

Each team's steps take a part of the global batch in proportion to its speed, so that all teams make
about as many steps in the same time, and together use a global batch in the time of one step.

But a step with a few samples, at a learning rate that fits the whole batch, moves the parameters by
noise: a slow team would ruin what the others learn. So a team has no less than `LEAST_PART` of its
equal part, and if it is slower than that, it makes fewer steps than the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.control.shares.rebalance import SETTLED
from gangline.control.shares.speeds import assumed_costs
from gangline.planning.allocation.policies import AllocationProblem, allocate, proportional
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.control.state import ControlState

MINIMUM_CHANGE = 0.1
"""A team's part is changed where it is off by more than this."""


LEAST_PART = 0.5
"""Of what each worker would get of the batch if all got the same."""
DIVIDE_EVERY_S = 1.0
"""How often it is looked whether the parts fit the teams' speeds."""


def divide(
    global_batch: int, speeds: Mapping[int, float], least: Mapping[int, int]
) -> dict[int, int]:
    """Each team's samples per step: in proportion to its speed, no less than `least`; exact in sum."""
    if sum(least.values()) > global_batch:
        raise UsageError(
            f"a global batch of {global_batch} cannot be divided among {len(least)} teams that need "
            f"{sum(least.values())} samples at least"
        )
    teams = sorted(speeds)
    parts = proportional(
        global_batch,
        [speeds[team] for team in teams],
        minimum=[least[team] for team in teams],
    )
    return dict(zip(teams, parts.tolist(), strict=True))


def least_share(global_batch: int, num_workers: int, *, minimum: int) -> int:
    """The fewest samples of a worker, where teams may make different numbers of steps."""
    return max(minimum, int(LEAST_PART * global_batch / max(1, num_workers)))


def least_parts(global_batch: int, workers: Mapping[int, int], *, minimum: int) -> dict[int, int]:
    """The fewest samples of each team, by its number of workers: `minimum` for each of them.

    More may have joined than the batch has room for. Then it is less for each, but no less than the 2
    samples that BatchNorm needs, if `minimum` is as much.
    """
    room = global_batch // max(1, sum(workers.values()))
    each = max(1, min(minimum, max(room, 2)))
    return {team: each * max(1, count) for team, count in workers.items()}


def divide_by_speed(
    global_batch: int, teams: Mapping[int, ControlState], *, minimum: int = 1
) -> dict[int, int] | None:
    """Each team's samples per step by what was measured of its members; None where that is little.

    The batch is cut among all workers as if they were one group, so that every worker needs the same
    time for its part; a team's samples are those of its members. Each has `minimum` of them at least,
    unless its memory holds less.
    """
    states = list(teams.values())
    if any(state.speeds.observed.min() < SETTLED for state in states):
        return None
    costs = [assumed_costs(state.speeds, state.weights) for state in states]
    nothing = np.zeros(sum(len(state.members) for state in states))
    max_samples = np.concatenate([state.max_samples for state in states])
    problem = AllocationProblem(
        global_batch=global_batch,
        minimum=max(1, states[0].options.minimum, min(minimum, int(max_samples.min()))),
        weights=np.concatenate([state.weights for state in states]),
        max_samples=max_samples,
        fixed_s=np.concatenate([fixed_s for fixed_s, _ in costs]),
        per_sample_s=np.concatenate([per_sample_s for _, per_sample_s in costs]),
        operations_per_s=nothing,
        memory_bytes=nothing,
        latency_s=nothing,
    )
    shares = allocate("balanced", problem, rng=np.random.default_rng(0))
    sizes = [len(state.members) for state in states]
    parts = np.split(shares, np.cumsum(sizes)[:-1])
    return {team: int(part.sum()) for team, part in zip(teams, parts, strict=True)}


def paces(teams: Mapping[int, ControlState]) -> dict[int, float] | None:
    """Samples per second of each team, with its present part of the batch; None: not known yet."""
    found = {}
    for number, state in teams.items():
        if state.view is None or int(state.speeds.observed.min()) < SETTLED:
            return None
        step_s = float(state.speeds.predicted_s(state.shares).max())
        if not step_s > 0:
            return None
        found[number] = state.view.global_batch / step_s
    return found


def is_worth_changing(present: Mapping[int, int], better: Mapping[int, int]) -> bool:
    """Whether some team's part is off by so much that it should be changed."""
    return any(
        abs(better[team] - part) > max(1.0, MINIMUM_CHANGE * part) for team, part in present.items()
    )
