# SPDX-License-Identifier: Apache-2.0
"""The HTTP side against its own OpenAPI document, and against requests that it does not describe."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import KEYS, ask, serving

from gangline.coordinator.server.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.coordinator.server import CoordinatorServer

GENEROUS = Limits(requests_per_s=1e6, request_burst=1e6, failures_per_s=1e6, failure_burst=1e6)
SCHEMATHESIS = Path(__file__).parents[2] / ".cache" / "fuzz" / "bin" / "schemathesis"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
BODIES = st.one_of(
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    JSON.map(lambda value: json.dumps({"worker": value}).encode()),
    JSON.map(lambda value: json.dumps({"request": value}).encode()),
    JSON.map(lambda value: json.dumps({"structure": value}).encode()),
    JSON.map(lambda value: json.dumps({"key": "k", "chunks": value}).encode()),
    JSON.map(lambda value: json.dumps({"name": value}).encode()),
    JSON.map(lambda value: json.dumps({"lasts_s": value, "uses": 1}).encode()),
)
NAMES = (
    *("exclude", "pause", "checkpoint", "end", "dashboard/code"),
    *("leave", "replan", "survey", "sync", "certificate", "events", "reach", "status"),
    *("code", "code/files", "enter", "invitations", "invitations/withdraw"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[CoordinatorServer]:
    with serving(limits=GENEROUS) as made:
        yield made


def test_the_document_describes_every_route(server: CoordinatorServer) -> None:
    document = ask(server, "/openapi.json", KEYS.observer).json()
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {
        "/openapi.json",
        "/api/status",
        "/metrics",
        "/api/leave",
        "/api/replan",
        "/api/survey",
        "/api/sync",
        "/api/exclude",
        "/api/pause",
        "/api/checkpoint",
        "/api/end",
        "/api/dashboard/code",
        "/api/busy",
        "/api/certificate",
        "/api/events",
        "/api/code",
        "/api/code/files",
        "/api/enter",
        "/api/invitations",
        "/api/invitations/withdraw",
        "/api/reach",
    }
    named = set(document["components"]["schemas"])
    assert {"Status", "LeaveRequest", "CertificateRequest", "CertificateAnswer"} <= named


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    path=st.sampled_from(["/openapi.json", "/x", *(f"/api/{name}" for name in NAMES)]),
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH"]),
    body=BODIES,
)
def test_no_request_is_answered_with_a_failure_of_the_server(
    server: CoordinatorServer, path: str, method: str, body: bytes
) -> None:
    answer = ask(server, path, KEYS.operator, method=method, content=body)
    assert answer.status_code < 500
    assert answer.status_code == 200 or answer.text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing(server: CoordinatorServer, tmp_path: Path) -> None:
    if not SCHEMATHESIS.exists():
        pytest.skip("schemathesis is not installed: run `make fuzz`")
    url = server.url.replace("ws", "http", 1)
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    done = subprocess.run(
        [
            *(str(SCHEMATHESIS), "run", f"{url}/openapi.json"),
            *("-H", f"Authorization: Bearer {KEYS.operator}"),
            *("--checks", f"{checks},response_schema_conformance", "--max-examples", "50"),
            "--no-color",
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-4000:]
