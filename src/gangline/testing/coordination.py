# SPDX-License-Identifier: Apache-2.0
"""A coordinator as a thread of the test process."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gangline.coordinator.server import CoordinatorServer, Keys, Post, assemble
from gangline.files.announcement import Announcement
from gangline.files.tokens import write_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.engines.job import Job


@contextmanager
def coordinator_thread(job: Job) -> Iterator[CoordinatorServer]:
    """Runs the job's coordinator as a thread of this process."""
    token = write_token(job.token_file)
    server = assemble(Post(config=job.config), job.run_dir, keys=Keys.of_worker(token))
    server.start()
    try:
        Announcement(run=job.run, url=server.url, pid=os.getpid()).write(job.run_dir)
        yield server
    finally:
        server.stop()
