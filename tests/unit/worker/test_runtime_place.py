# SPDX-License-Identifier: Apache-2.0
"""Where workers find the coordinator, by what their launcher has told them."""

from __future__ import annotations

import socket

from gangline.worker.started.torchrun import TorchRun


def test_a_worker_that_torchrun_starts_late_finds_the_first_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    def launch(worker: int) -> TorchRun:
        return TorchRun(
            run="run",
            worker=worker,
            workers=2,
            host="127.0.0.1",
            port=port,
            agent_serves_store=False,  # so the first worker does
            attempt="0",
        )

    first = launch(0).place(timeout_s=5)
    assert first.own_coordinator is not None
    try:
        late = launch(1).place(timeout_s=5)
        assert late.find_coordinator is not None
        assert first.find_coordinator is not None
        assert late.find_coordinator() == first.find_coordinator()
        assert late.token == first.token
        assert late.own_coordinator is None
    finally:
        first.own_coordinator.stop()
