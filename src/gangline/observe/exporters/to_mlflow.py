# SPDX-License-Identifier: Apache-2.0
"""MLflow: a run in the experiment `gangline` of a tracking server or store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

if TYPE_CHECKING:
    from gangline.observe.exporters.exporter import Point

EXPERIMENT = "gangline"
_MAX_BATCH = 500
"""MLflow takes up to 1000 metrics at once."""
_FORBIDDEN = re.compile(r"[^\w\-. /]")
_STATUS = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MlflowExporter:
    """Collects metrics, and sends them in batches: one request per step would be too slow."""

    def __init__(self, uri: str, run: str) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = (
            self._client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
        )
        self._run_id = self._client.create_run(experiment, run_name=run).info.run_id
        self._kept: list[Metric] = []

    def put(self, point: Point) -> None:
        """Keeps the point, and sends what is kept when that is much."""
        at_ms = int(point.t * 1000)
        self._kept += [
            Metric(_FORBIDDEN.sub("_", name), value, at_ms, point.step)
            for name, value in point.values.items()
        ]
        if len(self._kept) >= _MAX_BATCH:
            self._send()

    def close(self, status: str) -> None:
        """Sends the rest, and says how the run ended."""
        self._send()
        self._client.set_terminated(self._run_id, _STATUS.get(status, "FAILED"))

    def _send(self) -> None:
        while self._kept:
            batch, self._kept = self._kept[:_MAX_BATCH], self._kept[_MAX_BATCH:]
            self._client.log_batch(self._run_id, metrics=batch)


def open_exporter(where: str, run: str) -> MlflowExporter:
    """`where` is the tracking URI."""
    return MlflowExporter(where, run)
