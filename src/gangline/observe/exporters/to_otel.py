# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: gauges, sent by OTLP over HTTP to a collector, every 10 seconds."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

if TYPE_CHECKING:
    from gangline.observe.exporters.exporter import Point

INTERVAL_S = 10.0
_TIMEOUT_S = 5.0
_FORBIDDEN = re.compile(r"[^\w\-./]")
_MAX_NAME = 200


class OtelExporter:
    """Sets gauges; the SDK's own thread sends their newest values. It knows no steps: `step` is one."""

    def __init__(self, reader: MetricReader, run: str) -> None:
        # A collector that is away would be told of with a traceback every time.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        resource = Resource.create({"service.name": "gangline", "gangline.run": run})
        self._provider = MeterProvider(metric_readers=[reader], resource=resource)
        self._meter = self._provider.get_meter("gangline")
        self._gauges: dict[str, Any] = {}

    def put(self, point: Point) -> None:
        """Sets one gauge per value."""
        for name, value in {**point.values, "step": point.step, "epoch": point.epoch}.items():
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(_metric_name(name))
            self._gauges[name].set(value)

    def close(self, status: str) -> None:
        """Sends the last values."""
        self._provider.shutdown()


def _metric_name(name: str) -> str:
    """As OpenTelemetry wants it: `gangline.loss`, `gangline.share.3`."""
    plain = _FORBIDDEN.sub("_", name.removeprefix("gangline/")).replace("/", ".")
    return f"gangline.{plain}"[:_MAX_NAME]


def open_exporter(where: str, run: str) -> OtelExporter:
    """`where` is the collector's URL for metrics."""
    exporter = OTLPMetricExporter(endpoint=where, timeout=_TIMEOUT_S)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=INTERVAL_S * 1000)
    return OtelExporter(reader, run)
