# SPDX-License-Identifier: Apache-2.0
"""Reads event logs, and nothing else: timeline, metrics, report, chart, trace."""

from gangline.observe.chart import Bar as Bar
from gangline.observe.chart import draw_bars as draw_bars
from gangline.observe.chart import worker_bars as worker_bars
from gangline.observe.metrics import summarize as summarize
from gangline.observe.summary import RunSummary as RunSummary
from gangline.observe.summary import WorkerSummary as WorkerSummary
from gangline.observe.tracing import to_trace as to_trace
