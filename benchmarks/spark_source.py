# SPDX-License-Identifier: Apache-2.0
"""Spark as the source of samples: rows per second against the same rows read from local files.

    PYTHONPATH=.cache/spark python benchmarks/spark_source.py
    PYTHONPATH=.cache/spark python benchmarks/spark_source.py --rows 20000 --repeats 2

Three contenders train the same small model on the same rows, by as many workers with one thread each:

- `files`: `gangline run` on this machine, over Arrow files that are there already;
- `spark`: `gangline.spark.fit` on a DataFrame of Parquet files, in an application that runs already;
- `torch-distributor`: pyspark's own TorchDistributor, whose processes train by DistributedDataParallel
  over gloo, on the same Arrow files.

What is compared is the time of an epoch, as the first worker sees it: the shortest of a few. The column
`whole` is the time of the whole call: what is started, computed, written and sent as well.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from pyspark.sql.functions import array, col, rand
from torch import nn

import gangline
from gangline.engines.running import run_job
from gangline.engines.spark.rows.dataset import Rows, stacked
from gangline.engines.spark.rows.materialise import into_shared
from gangline.engines.spark.training.work import (
    FOLDER_VARIABLE,
    ROWS_FILE,
    WORK_FILE,
    RowsPlace,
    Work,
    packed,
    read_rows,
)
from gangline.launch.engines.local import prepared
from gangline.launch.program import Program
from gangline.spark import fit
from gangline.spec.cluster import Cluster
from gangline.spec.config import RunConfig
from harness import compare, save

FEATURES, CLASSES = 32, 10
BASELINE = "files"
TRAINEE = "gangline.engines.spark.training.trainee"


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def timed_training(batch: int, epochs: int, answer: str) -> Any:
    """A train function that writes down how long its epochs took."""

    def train(model: nn.Module, rows: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss_of = nn.CrossEntropyLoss()
        model, optimizer, loader = gangline.prepare(model, optimizer, rows.loader(batch))
        times = []
        for _ in gangline.epochs(epochs):
            begun_s = time.perf_counter()
            for x, y in loader:
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()
            times.append(time.perf_counter() - begun_s)
        if gangline.is_main():
            Path(answer).write_text(json.dumps(times))

    return train


def train_by_ddp(folder: str, batch: int, epochs: int, answer: str) -> None:
    """The same, as a user of TorchDistributor writes it."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    dist.init_process_group("gloo")
    place = read_rows(Path(folder))
    rows = Rows(place.index, Path(place.folder)).select(["x"], "y")
    model = DistributedDataParallel(net())
    sampler: Any = DistributedSampler(rows)
    share = batch // dist.get_world_size()
    loader: Any = DataLoader(rows, batch_size=share, sampler=sampler, collate_fn=stacked)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    times = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        begun_s = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
        times.append(time.perf_counter() - begun_s)
    if dist.get_rank() == 0:
        Path(answer).write_text(json.dumps(times))
    dist.destroy_process_group()


class Contest:
    """The contenders, each a call that returns the seconds of an epoch."""

    def __init__(self, spark: SparkSession, folder: Path, options: argparse.Namespace) -> None:
        self._options = options
        self._folder = folder
        self._answer = folder / "answer.json"
        self._count = 0
        self.whole: dict[str, list[float]] = {}
        made = spark.range(0, options.rows, 1, options.workers * 2)
        frame = made.select(
            array([rand(seed).cast("float") for seed in range(FEATURES)]).alias("x"),
            (col("id") % CLASSES).alias("y"),
        )
        frame.write.parquet(str(folder / "parquet"))
        self._frame = spark.read.parquet(str(folder / "parquet"))
        (folder / "rows").mkdir()
        index = into_shared(self._frame, folder / "rows")
        place = RowsPlace(index=index, folder=str(folder / "rows"))
        (folder / ROWS_FILE).write_bytes(msgspec.json.encode(place))
        work = Work(model=net(), train=self._train(), features=("x",), label="y")
        (folder / WORK_FILE).write_bytes(packed(work))

    def files(self) -> float:
        """On this machine, without Spark."""
        cluster = Cluster.of_speeds((1.0,), workers=self._options.workers)
        program = Program("files", (), module=TRAINEE)
        environment = {**os.environ, FOLDER_VARIABLE: str(self._folder)}
        with prepared(RunConfig(cluster=cluster), program, run_dir=self._next()) as job:
            return self._timed("files", lambda: _done(run_job(job, environment=environment)))

    def spark(self) -> float:
        """In the slots of the application."""

        def call() -> None:
            fit(
                self._frame,
                net(),
                train=self._train(),
                features=["x"],
                label="y",
                workers=self._options.workers,
                min_workers=self._options.workers,
                run_dir=self._next(),
            )

        return self._timed("spark", call)

    def torch_distributor(self) -> float:
        """By pyspark's own means."""
        options = self._options
        distributor = TorchDistributor(
            num_processes=options.workers, local_mode=False, use_gpu=False
        )
        given = (str(self._folder), options.batch, options.epochs, str(self._answer))
        return self._timed("torch-distributor", lambda: distributor.run(train_by_ddp, *given))

    def _train(self) -> Any:
        return timed_training(self._options.batch, self._options.epochs, str(self._answer))

    def _next(self) -> Path:
        self._count += 1
        return self._folder / f"run{self._count}"

    def _timed(self, name: str, call: Any) -> float:
        self._answer.unlink(missing_ok=True)
        begun_s = time.perf_counter()
        call()
        self.whole.setdefault(name, []).append(time.perf_counter() - begun_s)
        return float(min(json.loads(self._answer.read_text())))


def _done(result: Any) -> None:
    if result.status != "done":
        raise RuntimeError(result.reason)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--master", default=None, help="default: local[WORKERS]")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    spark = (
        SparkSession.builder.master(options.master or f"local[{options.workers}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(prefix="gangline-bench-") as folder:
        contest = Contest(spark, Path(folder), options)
        contenders = {
            "files": contest.files,
            "spark": contest.spark,
            "torch-distributor": contest.torch_distributor,
        }
        found = compare(contenders, baseline=BASELINE, repeats=options.repeats, warmup=0)
        rates = {row.name: options.rows / row.median_s for row in found.rows}
        found = found.with_extra("rows/s", rates)
        found = found.with_extra("whole, s", {n: median(own) for n, own in contest.whole.items()})
        spark.stop()
    title = f"{options.rows} rows, {options.workers} workers, batch {options.batch}"
    print(save("spark_source", {title: found}))


if __name__ == "__main__":
    main()
