# SPDX-License-Identifier: Apache-2.0
"""`GanglineTrainer`: a function, trained by workers in Ray's actors, with results in Ray's own form."""

from __future__ import annotations

import logging
import pickle
import time
from typing import TYPE_CHECKING, Any

from gangline.engines.ray.cluster import check_ray, pinned_here
from gangline.engines.ray.data.service import RowService
from gangline.engines.ray.data.source import Source
from gangline.engines.ray.loop import FILE, TrainLoop
from gangline.engines.ray.results import SERVICE, Results, ResultService
from gangline.engines.running import run_job
from gangline.launch.engines.ray.asked import check_run, keeping, run_config
from gangline.launch.engines.ray.preparing import prepared_in_ray
from gangline.launch.program import Program
from gangline.launch.run import resolve
from gangline.protocol.agents import CHUNK_BYTES, File
from gangline.spec.errors import GanglineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gangline.engines.ray.results import Report
    from gangline.engines.ray.services.desk import Service
    from gangline.engines.result import JobResult

_log = logging.getLogger("gangline")
_MODULE = "gangline.engines.ray.loop"


class GanglineTrainer:
    """Trains as Ray Train's trainers do; workers may come and go while it does.

    trainer = GanglineTrainer(train_loop, scaling_config=ScalingConfig(num_workers=(1, 4)))
    result = trainer.fit()
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        scaling_config: Any = None,
        run_config: Any = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_rows: Mapping[str, int] | None = None,
        resume_from_checkpoint: Any = None,
        gangline_config: Mapping[str, Any] | None = None,
    ) -> None:
        """`gangline_config` has the options of a run, as a run configuration file does.

        `dataset_rows` says how many rows a data set has, where Ray does not know: else all of it is
        computed before the first step.
        """
        check_ray()
        from ray import train

        self._function = train_loop_per_worker
        self._loop_config = train_loop_config
        self._scaling = scaling_config or train.ScalingConfig()
        self._run = run_config or train.RunConfig()
        self._datasets = dict(datasets or {})
        self._rows = dict(dataset_rows or {})
        for name in self._rows.keys() - self._datasets.keys():
            raise UsageError(f"dataset_rows names {name!r}, which is none of the datasets")
        self._checkpoint = resume_from_checkpoint
        check_run(self._run)
        self._name = self._run.name or f"gangline-{time.strftime('%Y%m%d-%H%M%S')}"
        self._config = resolve(_run_config(self._scaling, gangline_config, self._name))

    def fit(self) -> Any:
        """A `ray.train.Result`. Raises its error, a `ray.train.TrainingFailedError`, as Ray's do."""
        import ray

        if not ray.is_initialized():
            ray.init()
        filesystem, storage = self._storage()
        results = _beside(Results, keeping(self._run.checkpoint_config))
        sources = {
            name: _source(dataset, self._rows.get(name)) for name, dataset in self._datasets.items()
        }
        services: dict[str, Service] = {SERVICE: ResultService(results)}
        services |= {f"data:{name}": RowService(source) for name, source in sources.items()}
        try:
            ended = self._train(self._pickled(storage, filesystem), services)
            reports, value = ray.get(results.all.remote())
        finally:
            for actor in (results, *sources.values()):
                ray.kill(actor)
        found = _result(reports, value, storage, filesystem, ended)
        if found.error is not None:
            raise found.error
        return found

    def _train(self, pickled: bytes, services: Mapping[str, Service]) -> JobResult:
        program = Program(self._name, (), module=_MODULE)
        with prepared_in_ray(
            self._config,
            program,
            run_dir=None,
            tell=_log.info,
            files=lambda: _pieces(pickled),
            services=services,
            runtime_env=self._run.worker_runtime_env,
            spare_cpus=int(any(_is_computed(one) for one in self._datasets.values())),
        ) as found:
            return run_job(found.job, make_engine=found.make_engine)

    def _storage(self) -> tuple[Any, str]:
        """Ray's file system and the folder of this run in it."""
        from pyarrow import fs

        asked = self._run
        if asked.storage_filesystem is not None:
            filesystem, path = asked.storage_filesystem, str(asked.storage_path)
        else:
            filesystem, path = fs.FileSystem.from_uri(str(asked.storage_path))
        storage = f"{path.rstrip('/')}/{self._name}"
        filesystem.create_dir(storage, recursive=True)
        return filesystem, storage

    def _pickled(self, storage: str, filesystem: Any) -> bytes:
        from ray import cloudpickle

        loop = TrainLoop(
            function=self._function,
            config=self._loop_config,
            storage=storage,
            filesystem=filesystem,
            checkpoint=self._checkpoint,
        )
        found: bytes = cloudpickle.dumps(loop)
        return found


def _run_config(scaling: Any, options: Mapping[str, Any] | None, name: str) -> Any:
    return run_config(scaling, options or {}, run=name)


def _is_computed(dataset: Any) -> bool:
    """Whether a data set must still be computed, by tasks that take a CPU."""
    from ray.data.dataset import MaterializedDataset

    return not isinstance(dataset, MaterializedDataset)


def _source(dataset: Any, rows: int | None) -> Any:
    return _beside(Source, dataset, rows, max_restarts=-1, max_task_retries=-1, max_concurrency=16)


def _beside(kind: type[Any], *arguments: Any, **options: Any) -> Any:
    """An actor on this node, which takes nothing that a worker could use."""
    import ray

    place = pinned_here()
    asked = ray.remote(kind).options(num_cpus=0, scheduling_strategy=place, **options)
    return asked.remote(*arguments)


def _pieces(data: bytes) -> Iterator[File]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield File(name=FILE, data=data[start : start + CHUNK_BYTES], is_first=start == 0)


def _result(
    reports: list[Report], value: bytes, storage: str, filesystem: Any, ended: JobResult
) -> Any:
    from ray import train

    def checkpoint(report: Report) -> Any:
        return train.Checkpoint(f"{storage}/{report.checkpoint}", filesystem)

    kept = [(checkpoint(one), one.metrics) for one in reports if one.checkpoint]
    return train.Result(
        metrics=reports[-1].metrics if reports else None,
        checkpoint=kept[-1][0] if kept else None,
        error=None if ended.status == "done" else _error(ended),
        path=storage,
        metrics_dataframe=_frame(reports),
        best_checkpoints=kept,
        _storage_filesystem=filesystem,
        return_value=pickle.loads(value) if value else None,
    )


def _frame(reports: list[Report]) -> Any:
    import pandas as pd

    return pd.DataFrame([one.metrics for one in reports]) if reports else None


def _error(ended: JobResult) -> Any:
    from ray import train

    failed = [one for one in ended.workers if one.has_failed]
    failures = {one.worker: GanglineError(one.traceback or one.reason) for one in failed}
    return train.WorkerGroupError(ended.reason, failures)
