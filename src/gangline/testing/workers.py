# SPDX-License-Identifier: Apache-2.0
"""Runs one function as the workers of a job, in processes of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.testing.pool import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gangline.spec.exchange.structure import Structure


def run_workers(
    function: Callable[..., Any],
    num_workers: int,
    *,
    args: Sequence[Any] = (),
    deadline_s: float = 50,
    speeds: Sequence[float] | None = None,
    shares: Sequence[float] | None = None,
    transport: str | None = None,
    structure: Structure | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """What `function(*args)` returned in each of several fresh processes, in rank order.

    The processes are set up as by `gangline run`. Raises `WorkerError` with every worker's output
    if one of them fails or the deadline passes; no process is left in any case.
    """
    with WorkerPool(env=env) as pool:
        return pool.run(
            function,
            num_workers,
            args=args,
            deadline_s=deadline_s,
            speeds=speeds,
            shares=shares,
            transport=transport,
            structure=structure,
        )
