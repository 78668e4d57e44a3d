# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is given, read back by its own parser where that is installed."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from gangline.coordinator.server.prometheus import CONTENT_TYPE, to_text
from gangline.protocol.status import Status, WorkerStatus
from gangline.spec.view import View

ODD = 'a "host" \\ with\na new line'
STATUS = Status(
    run=ODD,
    expected_workers=3,
    workers=[
        WorkerStatus(
            worker=0, host="desk", pid=1, is_connected=True, state="training", step=41,
            samples=24, compute_s=0.125,
        ),
        WorkerStatus(worker=1, host=ODD, pid=2, is_connected=False, state="lost"),
    ],
    view=View(number=3, members=(0,), shares=(24,), reason="r"),
    step=41,
    decisions=[],
    samples=1 << 40,
    logged={"loss": 0.25, "acc": None, ODD: 1e-7},
)  # fmt: skip
_LINE = re.compile(
    r'(# (HELP|TYPE) gangline_\w+ .+|gangline_\w+(\{\w+="([^"\\\n]|\\.)*"(,\w+="([^"\\\n]|\\.)*")*\})? '
    r"(NaN|[-+.e\d]+))"
)


def parsed(text: str) -> dict[str, Any]:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        pytest.skip("prometheus_client is not installed: run `make test-exporters`")
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_every_line_is_in_the_format() -> None:
    lines = to_text(STATUS).split("\n")
    assert lines.pop() == ""
    assert [line for line in lines if not _LINE.fullmatch(line)] == []


def test_every_metric_says_what_it_is_and_none_comes_twice() -> None:
    text = to_text(STATUS)
    names = re.findall(r"^# TYPE (\w+) (?:gauge|counter)$", text, re.MULTILINE)
    assert len(names) == len(set(names)) == len(re.findall(r"^# HELP", text, re.MULTILINE))
    assert set(re.findall(r"^(gangline_\w+)", text, re.MULTILINE)) == set(names)
    counters = re.findall(r"^# TYPE (\w+) counter$", text, re.MULTILINE)
    assert all(name.endswith("_total") for name in counters)


def test_prometheus_reads_what_is_meant() -> None:
    families = parsed(to_text(STATUS))

    def samples(name: str, label: str) -> dict[str, float]:
        return {one.labels[label]: one.value for one in families[name].samples}

    assert families["gangline_samples"].samples[0].value == 1 << 40
    assert families["gangline_samples"].type == "counter"
    assert samples("gangline_job_info", "run") == {ODD: 1}
    assert samples("gangline_workers", "state")["lost"] == 1
    assert samples("gangline_worker_share_samples", "worker") == {"0": 24, "1": 0}
    assert samples("gangline_worker_up", "host") == {"desk": 1, ODD: 0}
    logged = samples("gangline_logged", "name")
    assert logged["loss"] == 0.25
    assert logged[ODD] == 1e-7
    assert math.isnan(logged["acc"])


def test_a_job_that_has_not_begun_has_metrics() -> None:
    status = Status(run="r", expected_workers=2, workers=[], view=None, step=-1, decisions=[])
    assert "gangline_step -1\n" in to_text(status)
    assert "version=0.0.4" in CONTENT_TYPE
