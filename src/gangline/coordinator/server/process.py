# SPDX-License-Identifier: Apache-2.0
"""A coordinator as a process: what `gangline up` and `python -m gangline.coordinator` run.

A launcher's coordinator finds what it must know in the run folder, and is told the port, when it is
needed, by the line to the launcher.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.detectors import load_detector
from gangline.coordinator.server.access import Keys
from gangline.coordinator.server.driver import Driver
from gangline.coordinator.server.lifeline import Lifeline, warm_up
from gangline.coordinator.server.serve import CoordinatorServer
from gangline.eventlog import EventWriter, log_path
from gangline.files.announcement import Announcement
from gangline.files.config import PROFILE_FILE, read_config
from gangline.files.tls import read_tls_files, server_tls
from gangline.files.tokens import WORKER_TOKEN
from gangline.spec.config import RunConfig
from gangline.spec.errors import GanglineError
from gangline.spec.profile import ClusterProfile

if TYPE_CHECKING:
    from collections.abc import Callable


def _silent(url: str) -> None:
    """Nobody is told but those who look into the run folder."""


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """Which run a coordinator serves, and where."""

    config: RunConfig
    run_dir: Path
    reserved: int = 0
    """Workers bring the numbers below this one themselves."""
    profile: ClusterProfile | None = None
    """What is known of each worker's node: the structure is planned from it; None: it is not."""
    token_file: Path | None = None
    """Holds the workers' token; None: the run folder's."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""

    @classmethod
    def of_run(cls, run_dir: Path) -> Post:
        """For the run that a launcher has begun in a folder."""
        config = read_config(run_dir)
        path = run_dir / PROFILE_FILE
        is_planned = config.exchange.is_planned and path.is_file()
        return cls(
            config=config,
            run_dir=run_dir,
            reserved=config.num_workers + config.survival.num_respawns,
            profile=ClusterProfile.from_file(path) if is_planned else None,
        )

    @property
    def worker_token(self) -> Path:
        """The file with the workers' token."""
        return self.token_file or self.run_dir / WORKER_TOKEN


def serve(
    post: Post, *, lifeline: Lifeline | None = None, announce: Callable[[str], None] = _silent
) -> None:
    """Serves a run until the process is told to stop; `announce` is called with the address."""
    config, run_dir = post.config, post.run_dir
    keys = Keys.in_folder(run_dir, worker_file=post.worker_token)
    files = read_tls_files(run_dir)

    def on_ready(url: str) -> None:
        Announcement(run=config.run, url=url, pid=os.getpid()).write(run_dir)
        announce(url)

    log = log_path(run_dir, "coordinator")
    with EventWriter(log, run=config.run, source="coordinator") as events:
        driver = Driver(
            run=config.run,
            expected_workers=config.num_workers,
            run_dir=run_dir,
            events=events,
            reserved=post.reserved,
            profile=post.profile,
            detector=load_detector(config.manager.detector),
            patience_s=config.survival.patience_s,
        )
        CoordinatorServer(
            driver,
            keys=keys,
            host=post.host,
            port=post.port,
            tls=None if files is None else server_tls(files),
            lifeline=lifeline,
        ).run(on_ready)


def serve_launcher(
    post: Post, descriptor: int, *, announce: Callable[[str], None] = _silent
) -> None:
    """Stands by until the launcher behind a descriptor needs a coordinator, and serves then."""
    lifeline = Lifeline(descriptor)
    warm_up()
    port = lifeline.await_serve()
    if port is not None:
        serve(msgspec.structs.replace(post, port=port), lifeline=lifeline, announce=announce)


def main() -> None:
    """Serves the run of a launcher, when the launcher says so."""
    parser = argparse.ArgumentParser(
        prog="python -m gangline.coordinator",
        description="The coordinator of a run, as `gangline run` starts it. See `gangline up`.",
    )
    parser.add_argument("--run-dir", type=Path, required=True, help="the run folder")
    parser.add_argument("--lifeline", type=int, required=True, help="a descriptor: the launcher")
    given = parser.parse_args()
    try:
        post = Post.of_run(given.run_dir)
        load_detector(post.config.manager.detector)
        serve_launcher(post, given.lifeline)
    except GanglineError as error:
        sys.exit(f"gangline: {error}")
