# SPDX-License-Identifier: Apache-2.0
"""The drivers of the tests: `python spark_drivers.py NAME FOLDER MASTER [SETTING=VALUE…]`.

Each does one thing with a session, and writes what came of it to answer.json in its folder.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession
from spark_clusters import START_S, executors_of, has_worker, processes_with, settings
from torch import nn

import gangline
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.spark import fit
from gangline.spec.config import HostsConfig, RunConfig, SurvivalConfig
from gangline.spec.event import StepDone

ROWS, BATCH = 240, 12
PATIENT = RunConfig(hosts=HostsConfig(wait_s=START_S), survival=SurvivalConfig(respawn=True))
"""On a machine that is busy, executors take minutes to come."""


class Counter(nn.Module):
    """A number for each row: a step takes 1/BATCH from those of its batch, and from no others."""

    def __init__(self, rows: int = ROWS) -> None:
        super().__init__()
        self.counts = nn.Embedding(rows, 1)
        nn.init.zeros_(self.counts.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.counts(x[:, 0].long()).squeeze(-1)

    def uses(self) -> list[int]:
        """How often each row was used, as the numbers tell."""
        return [round(-float(one) * BATCH) for one in self.counts.weight.detach().reshape(-1)]


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def mean_output(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return output.mean()


def slow_counting(epochs: int, pause_s: float, until: Path | None = None) -> Any:
    """A train function whose steps take their time, so that something can happen meanwhile.

    With `until`, it ends after the epoch in which somebody has made that file.
    """

    def train(model: nn.Module, rows: Any) -> nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        loader = rows.loader(BATCH)
        model, optimizer, loader = gangline.prepare(model, optimizer, loader)
        for _ in gangline.epochs(epochs):
            for x in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
                time.sleep(pause_s)
            if until is not None and gangline.any(until.exists()):
                break
        return model

    return train


def told(fitted: Any, *, rows: int = ROWS, epochs: int) -> dict[str, Any]:
    """What a finished training comes to: who used which rows, by its log and by its numbers."""
    events = list(read_run(fitted.run_dir))
    ledger = read_ledger(events)
    steps = [event for event in events if isinstance(event, StepDone)]
    return {
        "status": fitted.result.status,
        "reason": fitted.result.reason,
        "num_rows": fitted.num_rows,
        "problems": ledger.problems(length=rows, epochs=epochs),
        "workers": sorted({event.worker for event in steps}),
        "uses": sorted(set(fitted.model.uses())) if isinstance(fitted.model, Counter) else [],
    }


def numbered(spark: SparkSession, *, partitions: int = 3) -> Any:
    return spark.range(0, ROWS, 1, partitions).selectExpr("double(id) as x", "double(0) as y")


# --- what the tests ask for ------------------------------------------------------------------------


def local(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Our loop, a train function with groups at their own pace, and predictions."""
    counted = fit(
        numbered(spark),
        Counter(),
        loss=mean_output,
        optimizer=plain_sgd,
        features="x",
        label="y",
        epochs=2,
        batch=BATCH,
        min_workers=2,
        run_dir=folder / "counted",
    )
    frame = spark.range(0, 400, 1, 3).selectExpr("id", "rand(1) as a", "rand(2) as b")
    frame = frame.selectExpr("*", "3*a - 2*b + 1 as y")
    vectors = VectorAssembler(inputCols=["a", "b"], outputCol="ab").transform(frame)
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    line = fit(
        vectors,
        model,
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.1),
        features=["ab"],
        label="y",
        epochs=25,
        batch=50,
        run_dir=folder / "line",
    )
    found = line.transform(vectors).selectExpr("abs(prediction - y) as off").collect()
    pairs = spark.sparkContext.parallelize([(float(one), 0.0) for one in range(ROWS)], 3)
    parted = fit(
        pairs,
        Counter(),
        train=slow_counting(1, 0.0),
        features=["_1"],
        sync="local(4)",
        run_dir=folder / "parted",
    )
    return {
        "counted": told(counted, epochs=2),
        "is_unchanged": bool(torch.equal(model.weight, before)),
        "weights": line.model.weight.detach().reshape(-1).tolist(),
        "most_off": max(row.off for row in found),
        "num_predicted": len(found),
        "parted": {"status": parted.result.status, "num_rows": parted.num_rows},
        "settings": [list(one) for one in spark.sparkContext.getConf().getAll()],
        "token": (counted.run_dir / "token").read_text().strip(),
    }


def bad(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """What cannot be meant, and what is said to it."""
    frame = numbered(spark)
    pieces = {"loss": mean_output, "features": ["x"], "label": "y"}
    failing = lambda model, rows: 1 / 0  # noqa: E731
    cases: dict[str, Any] = {
        "list": lambda: fit([1, 2], Counter(), **pieces),
        "model": lambda: fit(frame, Counter, **pieces),
        "no loss": lambda: fit(frame, Counter(), features=["x"], label="y"),
        "column": lambda: fit(frame, Counter(), **{**pieces, "features": ["z"]}),
        "empty": lambda: fit(frame.filter("x < 0"), Counter(), **pieces),
        "null": lambda: fit(frame.selectExpr("if(x=3,null,x) as x", "y"), Counter(), **pieces),
        "text": lambda: fit(frame.selectExpr("string(x) as x", "y"), Counter(), **pieces),
        "slots": lambda: fit(frame, Counter(), min_workers=9, workers=9, **pieces),
        "sync": lambda: fit(frame, Counter(), sync="sometimes", **pieces),
        "folder": lambda: fit(frame, Counter(), folder=folder / "none", **pieces),
        "both": lambda: fit(frame, Counter(), train=failing, loss=mean_output),
        "script": lambda: fit(frame, Counter(), train=failing, run_dir=folder / "failing"),
        "pickle": lambda: fit(frame, Counter(), train=lambda m, r: spark, features=["x"]),
    }
    answers = {}
    for name, case in cases.items():
        try:
            case()
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {error}"
        else:
            answers[name] = "nothing was said"
    return answers


def lossy(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """An executor is killed while its worker trains; in local mode, the process of a task."""
    run_dir, enough = folder / "lossy", folder / "enough"
    killed: list[int] = []

    def find() -> Any:
        if not spark.sparkContext.master.startswith("local"):
            executors = executors_of(str(spark.sparkContext.applicationId))
            return next(one for one in executors if has_worker(one))
        agents = (one for one in processes_with(str(folder)) if "--insist" in one.cmdline())
        return next(agents).parent()

    def strike() -> None:
        while not _has_trained(run_dir, steps=4):
            time.sleep(0.2)
        victim = find()
        killed.append(victim.pid)
        victim.kill()
        while not _has_trained(run_dir, steps=1, workers=3):
            time.sleep(0.2)
        enough.touch()

    threading.Thread(target=strike, daemon=True).start()
    fitted = fit(
        numbered(spark),
        Counter(),
        train=slow_counting(10_000, 0.1, until=enough),
        features=["x"],
        workers=2,
        min_workers=2,
        config=PATIENT,
        run_dir=run_dir,
    )
    return {"killed": killed, **told(fitted, epochs=fitted.model.uses()[0])}


def endless(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A training that somebody has to end."""
    fit(
        numbered(spark),
        Counter(),
        train=slow_counting(10_000, 0.2),
        features=["x"],
        workers=2,
        min_workers=2,
        config=PATIENT,
        run_dir=folder / "endless",
    )
    return {}


def strict(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A worker's task is lost in the strict form: all of them begin again."""
    run_dir = folder / "strict"

    def strike() -> None:
        while not _has_trained(run_dir, steps=3):
            time.sleep(0.2)
        executors_of(str(spark.sparkContext.applicationId))[0].kill()

    threading.Thread(target=strike, daemon=True).start()
    fitted = fit(
        numbered(spark),
        Counter(),
        train=slow_counting(1, 0.2),
        features=["x"],
        workers=2,
        min_workers=2,
        config=PATIENT,
        strict=True,
        run_dir=run_dir,
    )
    return {"run_dir": fitted.run_dir.name, **told(fitted, epochs=1)}


def barrier(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The two lines in tasks of a barrier stage, and in those of an ordinary one."""

    def train(numbers: Any) -> Any:
        gangline.init()
        model = Counter()
        data = torch.arange(ROWS, dtype=torch.float32).reshape(-1, 1)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(data), batch_size=BATCH, shuffle=True
        )
        optimizer = plain_sgd(model.parameters())
        model, optimizer, loader = gangline.prepare(model, optimizer, loader)
        for _ in gangline.epochs(1):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
        yield gangline.rank(), gangline.world_size(), sorted(set(model.uses()))

    context = spark.sparkContext
    twice = [
        sorted(context.parallelize(range(2), 2).barrier().mapPartitions(train).collect())
        for _ in range(2)
    ]
    try:
        context.parallelize(range(2), 2).mapPartitions(train).collect()
    except Exception as error:
        ordinary = str(error)
    else:
        ordinary = "nothing was said"
    return {"barrier": twice, "ordinary": ordinary}


def _has_trained(run_dir: Path, *, steps: int, workers: int = 2) -> bool:
    """Whether so many workers have written down so many steps each."""
    logs = list((run_dir / "events").glob("worker-*.jsonl"))
    counts = [log.read_bytes().count(b'"step_done"') for log in logs]
    return sum(count >= steps for count in counts) >= workers


CASES = {one.__name__: one for one in (local, bad, lossy, endless, strict, barrier)}


def main(name: str, folder: Path, master: str, *more: str) -> None:
    builder = SparkSession.builder.master(master).appName(f"test-{name}")
    given = dict(one.split("=", 1) for one in more)
    for key, value in settings(folder, **given).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        answer = CASES[name](spark, folder)
    finally:
        spark.stop()
    (folder / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
