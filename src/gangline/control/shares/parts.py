# SPDX-License-Identifier: Apache-2.0
"""How the global batch is divided among teams that train at their own pace.

Each team's steps take a part of the global batch in proportion to its speed, so that all teams make
about as many steps in the same time, and together use a global batch in the time of one step.
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


def least_parts(global_batch: int, workers: Mapping[int, int], *, minimum: int) -> dict[int, int]:
    """The fewest samples of each team, by its number of workers: `minimum` for each of them.

    More may have joined than the batch has room for. Then it is less for each, but no less than the 2
    samples that BatchNorm needs, if `minimum` is as much.
    """
    room = global_batch // max(1, sum(workers.values()))
    each = max(1, min(minimum, max(room, 2)))
    return {team: each * max(1, count) for team, count in workers.items()}


def divide_by_speed(global_batch: int, teams: Mapping[int, ControlState]) -> dict[int, int] | None:
    """Each team's samples per step by what was measured of its members; None where that is little.

    The batch is cut among all workers as if they were one group, so that every worker needs the same
    time for its part; a team's samples are those of its members.
    """
    states = list(teams.values())
    if any(state.speeds.observed.min() < SETTLED for state in states):
        return None
    costs = [assumed_costs(state.speeds, state.weights) for state in states]
    nothing = np.zeros(sum(len(state.members) for state in states))
    problem = AllocationProblem(
        global_batch=global_batch,
        minimum=max(1, states[0].options.minimum),
        weights=np.concatenate([state.weights for state in states]),
        max_samples=np.concatenate([state.max_samples for state in states]),
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


def is_worth_changing(present: Mapping[int, int], better: Mapping[int, int]) -> bool:
    """Whether some team's part is off by so much that it should be changed."""
    return any(
        abs(better[team] - part) > max(1.0, MINIMUM_CHANGE * part) for team, part in present.items()
    )
