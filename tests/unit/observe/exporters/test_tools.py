# SPDX-License-Identifier: Apache-2.0
"""Each tool takes a run without a network, and what it kept is read back with its own library."""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from gangline.observe.exporters import Point, find_target
from gangline.observe.exporters.tools import _TOOLS, _is_installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangline.observe.exporters import Exporter

pytestmark = pytest.mark.filterwarnings("ignore")
POINTS = [
    Point(t=100.0 + step, step=step, epoch=0, values={"loss": 1.0 / (1 + step), "lr %": 0.1})
    for step in range(3)
]


def opened(flag: str, where: str) -> Exporter:
    if not _is_installed(_TOOLS[flag].package):
        pytest.skip(f"{flag} is not installed: run `make test-exporters`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return find_target(flag, where).open("a run")


def given(exporter: Exporter) -> None:
    for point in POINTS:
        exporter.put(point)
    exporter.close("done")


def test_tensorboard(tmp_path: Path) -> None:
    given(opened("tensorboard", str(tmp_path)))
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (path,) = (tmp_path / "a run").iterdir()
    records = [one for one in EventFileLoader(str(path)).Load() if one.HasField("summary")]
    assert [(one.step, one.wall_time) for one in records] == [(n, 100.0 + n) for n in range(3)]
    values = {value.tag: value.tensor.float_val[0] for value in records[1].summary.value}
    assert values == {"loss": 0.5, "lr %": pytest.approx(0.1)}


def test_a_folder_that_tensorboard_cannot_write_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="file"):
        given(opened("tensorboard", str(tmp_path / "file")))


@pytest.fixture
def fresh_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the environment once per process, unless it is torn down."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.mark.usefixtures("fresh_wandb")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    given(opened("wandb", "project"))
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    deadline_s = time.monotonic() + 20  # a process of wandb's own writes it
    while b"loss" not in path.read_bytes() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert b"loss" in path.read_bytes()
    assert b"a run" in path.read_bytes()


@pytest.mark.usefixtures("fresh_wandb")
def test_wandb_without_a_key_says_so_and_asks_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Exception, match=r"wandb login.*WANDB_MODE=offline"):
        opened("wandb", "project")


def test_mlflow_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = (tmp_path / "mlruns").as_uri()
    given(opened("mlflow", uri))
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("gangline")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "a run"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    assert client.get_metric_history(run.info.run_id, "lr _")[0].value == 0.1


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Takes what is posted to it."""
    posted: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/metrics", posted
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def quiet_otel() -> Iterator[None]:
    before = logging.getLogger("opentelemetry").level
    yield
    logging.getLogger("opentelemetry").setLevel(before)


@pytest.mark.usefixtures("quiet_otel")
def test_opentelemetry_sends_gauges_to_a_collector(collector: tuple[str, list[bytes]]) -> None:
    url, posted = collector
    given(opened("opentelemetry", url))
    assert posted
    import gzip

    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    body = posted[-1]
    request = ExportMetricsServiceRequest()
    request.ParseFromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    (resource,) = request.resource_metrics
    attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert attributes["gangline.run"] == "a run"
    found = {
        metric.name: metric.gauge.data_points[0].as_double or metric.gauge.data_points[0].as_int
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert found["gangline.loss"] == pytest.approx(1 / 3)
    assert found["gangline.step"] == 2
    assert "gangline.lr__" in found


@pytest.mark.usefixtures("quiet_otel")
def test_a_collector_that_is_away_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    given(opened("opentelemetry", "http://127.0.0.1:9/v1/metrics"))
    assert not caplog.records
