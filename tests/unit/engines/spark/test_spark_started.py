# SPDX-License-Identifier: Apache-2.0
"""Tasks of Spark are recognised by the context that pyspark has set, and end with it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gangline.spec.errors import LaunchError, UsageError
from gangline.worker import api
from gangline.worker.started import spark

if TYPE_CHECKING:
    from collections.abc import Iterator


class TaskContext:
    """Stands for pyspark's."""

    present: Any = None

    @classmethod
    def get(cls) -> Any:
        return TaskContext.present

    @classmethod
    def _setTaskContext(cls, given: Any) -> None:  # noqa: N802
        TaskContext.present = given

    def partitionId(self) -> int:  # noqa: N802
        return 1

    def stageId(self) -> int:  # noqa: N802
        return 4

    def attemptNumber(self) -> int:  # noqa: N802
        return 2


class BarrierTaskContext(TaskContext):
    """Stands for pyspark's, in a stage of two tasks."""

    def getTaskInfos(self) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(address="127.0.0.1:71"), SimpleNamespace(address="127.0.0.1:72")]

    def allGather(self, said: str) -> list[str]:  # noqa: N802
        return ["ws://127.0.0.1:7 a-token", said]


@pytest.fixture(autouse=True)
def fake_pyspark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("pyspark")
    vars(module).update(TaskContext=TaskContext, BarrierTaskContext=BarrierTaskContext)
    monkeypatch.setitem(sys.modules, "pyspark", module)
    yield
    TaskContext.present = None


def test_a_process_that_is_no_task_is_not_recognised() -> None:
    assert spark.recognise({}) is None


def test_a_process_without_pyspark_is_not_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark")
    assert spark.recognise({}) is None


def test_a_task_of_an_ordinary_stage_is_told_what_to_do() -> None:
    TaskContext.present = TaskContext()
    with pytest.raises(UsageError, match=r"use gangline.spark.fit.*rdd.barrier\(\)"):
        spark.recognise({})


def test_a_barrier_task_has_its_place_and_ends_with_its_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = TaskContext.present = BarrierTaskContext()
    started = spark.recognise({})
    assert started is not None
    place = started.place(timeout_s=1)
    assert (place.launcher, place.run, place.worker, place.workers) == ("spark", "spark-4-2", 1, 2)
    assert place.find_coordinator is not None
    assert (place.find_coordinator(), place.token) == ("ws://127.0.0.1:7", "a-token")
    ended = []
    monkeypatch.setattr(api, "end_task", lambda: ended.append(TaskContext.present))
    BarrierTaskContext._setTaskContext(None)
    assert ended == [context]  # while the task is still there
    assert TaskContext.present is None
    BarrierTaskContext._setTaskContext(context)
    assert ended == [context]  # once only


def test_an_end_that_loses_a_step_is_the_tasks_error(monkeypatch: pytest.MonkeyPatch) -> None:
    TaskContext.present = BarrierTaskContext()
    started = spark.recognise({})
    assert started is not None
    started.place(timeout_s=1)

    def fail() -> None:
        raise LaunchError("a step is lost")

    monkeypatch.setattr(api, "end_task", fail)
    with pytest.raises(LaunchError, match="a step is lost"):
        BarrierTaskContext._setTaskContext(None)
    assert TaskContext.present is None


def test_tasks_that_do_not_all_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    TaskContext.present = BarrierTaskContext()

    def fail(self: Any, said: str) -> list[str]:
        raise RuntimeError("timed out")

    monkeypatch.setattr(BarrierTaskContext, "allGather", fail)
    started = spark.recognise({})
    assert started is not None
    with pytest.raises(LaunchError, match="did not all come"):
        started.place(timeout_s=1)
    monkeypatch.setattr(api, "end_task", lambda: None)
    BarrierTaskContext._setTaskContext(None)
