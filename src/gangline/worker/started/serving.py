# SPDX-License-Identifier: Apache-2.0
"""The first worker serves the coordinator, where its launcher knows nothing of one.

It is a thread of that worker's process, and ends with it: then the others go on for as long as nothing
is to be decided, and end with an error when something is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.files.tokens import make_token
from gangline.spec.cluster import Cluster
from gangline.spec.config import RunConfig

if TYPE_CHECKING:
    from gangline.coordinator.server import CoordinatorServer


class Served(NamedTuple):
    """A coordinator that this process serves, and what others need to get in touch with it."""

    server: CoordinatorServer
    url: str
    token: str


def serve_here(*, run: str, workers: int, host: str) -> Served:
    """Begins to serve the coordinator of a job of so many workers, at an address of this machine."""
    # Only here, so that the other workers do not carry a web server in their memory.
    from gangline.coordinator.server import Keys, Post, assemble

    cluster = Cluster.of_speeds((1.0,), workers=workers)
    token = make_token()
    post = Post(config=RunConfig(run=run, cluster=cluster), host=host)
    server = assemble(post, keys=Keys.of_worker(token))
    server.start()
    return Served(server, server.url, token)
