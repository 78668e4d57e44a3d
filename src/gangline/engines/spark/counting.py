# SPDX-License-Identifier: Apache-2.0
"""How many tasks of an application can run at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 120.0
"""How long executors may take to come: a cluster starts them after the application."""
_LOOK_S = 0.25
_DRIVER = "driver"


def is_one_machine(master: str) -> bool:
    """Whether all executors run on the driver's machine, and share its files."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def count_slots(context: Any) -> int:
    """How many tasks the executors that have come can run at once."""
    executors = context._jsc.sc().statusStore().executorList(True)
    found = [executors.apply(place) for place in range(executors.size())]
    if is_one_machine(context.master) and len(found) == 1:
        # There is no executor beside the driver, and settings of executors mean nothing.
        return int(found[0].totalCores()) // int(context.getConf().get("spark.task.cpus", "1"))
    return sum(int(one.maxTasks()) for one in found if one.isActive() and one.id() != _DRIVER)


def await_slots(
    count: Callable[[], int],
    *,
    least: int,
    most: int | None,
    wait_s: float = WAIT_S,
    master: str,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """How many workers can begin: as many as were asked for, or as have come when it is time.

    Without a number, the executors are taken that come within a moment after the first ones. Raises
    LaunchError where there are too few.
    """
    begun_s = changed_s = clock()
    before = 0
    while True:
        found, now = count(), clock()
        if found != before:
            before, changed_s = found, now
        if most is not None and found >= most:
            return most
        is_settled = most is None and found >= least and now - changed_s >= 1.0
        if is_settled or now - begun_s >= wait_s or is_one_machine(master):
            break
        pause(_LOOK_S)
    if before < least:
        raise LaunchError(_too_few(before, least=least, wait_s=wait_s, master=master))
    return before


def _too_few(found: int, *, least: int, wait_s: float, master: str) -> str:
    has = f"the Spark application at {master} has {found} task slots, and it takes {least}"
    if is_one_machine(master):
        return f"{has}: start it with SparkSession.builder.master('local[{least}]')"
    return (
        f"{has}, after {wait_s:g} s: the master has no more free cores or memory for it. Start a "
        f"worker there (spark-class org.apache.spark.deploy.worker.Worker {master}), end another "
        "application, or ask for less by spark.executor.memory, spark.task.cpus or min_workers"
    )
