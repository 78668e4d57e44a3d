# SPDX-License-Identifier: Apache-2.0
"""Runs in the slots of a Spark application: each holds an agent, which calls the launcher."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.engines.spark.checks import check_java, check_packages
from gangline.engines.spark.counting import WAIT_S, await_slots, count_slots, is_one_machine
from gangline.launch.engines.agents import called

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangline.launch.engines.kind import PreparedRun, Tell
    from gangline.launch.program import Program
    from gangline.spec.config import RunConfig


START_S = 120.0
"""How long the others wait for an agent in a slot that there is: it imports torch, as all do."""


class SparkRuns:
    """The engine `spark`."""

    def check(self, config: RunConfig) -> None:
        """The extra and Java must be here; the cluster is asked when its application is started."""
        check_packages()
        check_java()

    def submit(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> str | None:
        """It is run by us."""
        return None

    @contextmanager
    def prepared(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> Iterator[PreparedRun]:
        """An application of its own, and the job in its slots."""
        from gangline.engines.spark.sessions import own_session
        from gangline.engines.spark.slots import SparkSlots

        with own_session(config.spark, name=f"gangline {config.run or program.name}") as session:
            context = session.sparkContext
            count = slots_for(context, config)
            tell(f"Spark at {context.master} has room for {count} workers")
            slots = SparkSlots(context, count, is_strict=config.spark.strict, prefix=program.name)
            with called(
                settled(config, context, count), program, run_dir=run_dir, tell=tell, slots=slots
            ) as found:
                yield found


ENGINE = SparkRuns()


def slots_for(context: Any, config: RunConfig) -> int:
    """How many workers begin. Raises LaunchError where there are too few slots."""
    return await_slots(
        lambda: count_slots(context),
        least=config.hosts.min_workers,
        most=config.hosts.max_workers,
        master=context.master,
        wait_s=config.hosts.wait_s or WAIT_S,
    )


def settled(config: RunConfig, context: Any, count: int) -> RunConfig:
    """The same with so many workers at most: copies that Spark starts beside them stand by.

    The launcher listens as Spark's driver does, unless somebody has said where.
    """
    host = "127.0.0.1" if is_one_machine(context.master) else driver_host(context)
    hosts = msgspec.structs.replace(
        config.hosts,
        max_workers=count,
        min_workers=min(count, config.hosts.min_workers),
        listen=config.hosts.listen or host,
        wait_s=config.hosts.wait_s or START_S,
    )
    return msgspec.structs.replace(config, hosts=hosts)


def driver_host(context: Any) -> str:
    """The address at which executors reach this machine: Spark's own driver is found there, too."""
    return str(context.getConf().get("spark.driver.host", ""))
