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
from urllib.parse import urlsplit

import msgspec

from gangline.coordinator.detectors import load_detector
from gangline.coordinator.server.access import Keys
from gangline.coordinator.server.assembly import Post, assemble
from gangline.coordinator.server.lifeline import Lifeline, warm_up
from gangline.coordinator.server.until_done import UntilDone
from gangline.files.announcement import Announcement
from gangline.files.tls import read_tls_files, server_tls
from gangline.files.tokens import WORKER_TOKEN
from gangline.spec.errors import GanglineError
from gangline.spec.machines.link import bracketed

if TYPE_CHECKING:
    from collections.abc import Callable


def _silent(url: str) -> None:
    """Nobody is told but those who look into the run folder."""


def serve(
    post: Post,
    run_dir: Path,
    *,
    token_file: Path | None = None,
    lifeline: Lifeline | UntilDone | None = None,
    announce: Callable[[str], None] = _silent,
) -> None:
    """Serves a run until the process is told to stop; `announce` is called with the address.

    The workers' token is in `token_file`, or where the run folder has it.
    """
    keys = Keys.in_folder(run_dir, worker_file=token_file or run_dir / WORKER_TOKEN)
    files = read_tls_files(run_dir)

    def on_ready(listened: str) -> None:
        url = listened if post.announced is None else _at(listened, post.announced)
        Announcement(run=post.config.run, url=url, pid=os.getpid()).write(run_dir)
        announce(url)

    tls = None if files is None else server_tls(files)
    server = assemble(post, run_dir, keys=keys, tls=tls, lifeline=lifeline)
    if isinstance(lifeline, UntilDone):
        lifeline.end = server.end
    server.run(on_ready)


def _at(url: str, host: str) -> str:
    """The same port at another address of this machine."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{bracketed(host)}:{parts.port}"


def serve_launcher(post: Post, run_dir: Path, descriptor: int) -> None:
    """Stands by until the launcher behind a descriptor needs a coordinator, and serves then."""
    lifeline = Lifeline(descriptor)
    warm_up()
    port = lifeline.await_serve()
    if port is not None:
        serve(msgspec.structs.replace(post, port=port), run_dir, lifeline=lifeline)


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
        serve_launcher(post, given.run_dir, given.lifeline)
    except GanglineError as error:
        sys.exit(f"gangline: {error}")
