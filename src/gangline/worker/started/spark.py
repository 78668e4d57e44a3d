# SPDX-License-Identifier: Apache-2.0
"""A task of a barrier stage of Spark: the first one serves the coordinator, and Spark tells the others.

    def train(_):
        gangline.init()
        …

    sc.parallelize(range(4), 4).barrier().mapPartitions(train).collect()

Tasks of such a stage know each other, and Spark carries a short text between them, over its own lines:
address and token are on no page, in no argument and in no variable. A task has no end of its own:
Spark uses its process for the next one, so what ends with a process elsewhere ends with the task here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import LaunchError, UsageError
from gangline.worker.place import Place
from gangline.worker.started.serving import serve_here

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class BarrierTask:
    """This task's place in its stage."""

    context: Any
    run: str
    worker: int
    hosts: tuple[str, ...]
    """Where the tasks run, one for each."""

    def place(self, *, timeout_s: float) -> Place:
        """Meets the others by Spark's own means."""
        end_with_task(self.context)
        if len(self.hosts) == 1:
            return Place(launcher="spark", run=self.run)
        server, said = None, ""
        if self.worker == 0:
            server, url, token = serve_here(
                run=self.run, workers=len(self.hosts), host=self.hosts[0]
            )
            said = f"{url} {token}"
        try:
            told = self.context.allGather(said)
        except Exception as error:
            raise LaunchError(
                f"the tasks of the barrier stage did not all come to gangline.init() ({error}): all of "
                "them must call it"
            ) from error
        url, token = str(told[0]).split()
        return Place(
            launcher="spark",
            run=self.run,
            worker=self.worker,
            workers=len(self.hosts),
            find_coordinator=lambda: url,
            token=token,
            own_coordinator=server,
        )


def recognise(environment: Mapping[str, str]) -> BarrierTask | None:
    """The barrier stage that this process runs a task of, if it does. The environment says nothing."""
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.TaskContext.get()
    if context is None:
        return None
    if not isinstance(context, pyspark.BarrierTaskContext):  # type: ignore[union-attr]
        raise UsageError(
            "gangline.init() was called in a task of an ordinary stage of Spark, whose tasks do not "
            "know each other: use gangline.spark.fit(df, …), which survives the loss of a task, or a "
            "barrier stage, rdd.barrier().mapPartitions(train)"
        )
    hosts = tuple(one.address.rpartition(":")[0] for one in context.getTaskInfos())
    run = f"spark-{context.stageId()}-{context.attemptNumber()}"
    return BarrierTask(context=context, run=run, worker=context.partitionId(), hosts=hosts)


def end_with_task(context: Any) -> None:
    """Leaves the job when Spark takes the context of this task away: its process goes on.

    Whatever is wrong then is an error of the task.
    """
    kind = type(context)

    def taken_away(given: Any) -> None:
        del kind._setTaskContext
        try:
            from gangline.worker.api import end_task

            end_task()
        finally:
            kind._setTaskContext(given)

    kind._setTaskContext = taken_away
