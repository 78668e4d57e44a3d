# SPDX-License-Identifier: Apache-2.0
"""`gangline up`: starts a coordinator alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.detectors import DEFAULT_DETECTOR, DetectorFlag, load_detector
from gangline.cli.flag_groups import grouped
from gangline.cli.output import JsonFlag, print_json, say
from gangline.cli.patience import DEFAULT_PATIENCE_S, PatienceFlag
from gangline.cli.tls_options import TlsFlags, server_tls
from gangline.files.announcement import Announcement
from gangline.files.tls import TlsFiles
from gangline.files.tokens import WORKER_TOKEN
from gangline.spec.profile import ClusterProfile


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("up")(grouped(up))


def up(
    workers: Annotated[int, typer.Option(min=1, help="How many workers will join.")],
    tls: TlsFlags,
    run_dir: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/up"),
    name: Annotated[str | None, typer.Option(help="The run's name.")] = None,
    host: Annotated[str, typer.Option(help="The interface to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 0,
    token_file: Annotated[
        Path | None, typer.Option(help="A file that holds the workers' token (made if missing).")
    ] = None,
    reserved: Annotated[
        int, typer.Option(min=0, help="Workers bring the numbers below this one themselves.")
    ] = 0,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What is known of each worker's node: plan the structure from it."
        ),
    ] = None,
    patience: PatienceFlag = DEFAULT_PATIENCE_S,
    detector: DetectorFlag = DEFAULT_DETECTOR,
    lifeline: Annotated[
        int | None, typer.Option(hidden=True, help="The launcher's end is behind this descriptor.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a coordinator alone, and say how workers find it."""
    from gangline.coordinator.server import CoordinatorServer, Driver, Keys
    from gangline.coordinator.server.lifeline import Lifeline, warm_up
    from gangline.eventlog import EventWriter, log_path

    known = None if profile is None else ClusterProfile.from_file(profile)
    rule = load_detector(detector)
    run_dir.mkdir(parents=True, exist_ok=True)
    path = token_file or run_dir / WORKER_TOKEN
    keys = Keys.in_folder(run_dir, worker_file=path)
    run = name or run_dir.name
    files = tls.resolve(run_dir, run=run, host=host)
    line = None if lifeline is None else Lifeline(lifeline)
    if line is not None:
        warm_up()
        asked = line.await_serve()
        if asked is None:
            return
        port = asked

    def announce(url: str) -> None:
        Announcement(run=run, url=url, pid=os.getpid()).write(run_dir)
        command = join_command(url, token_file=path, tls=files)
        if as_json:
            print_json({"run": run, "url": url, "token_file": str(path), "join": command})
        else:
            say(f"coordinator of {run} at {url}, token in {path}")
            say(f"workers join it with: {command}")

    with EventWriter(log_path(run_dir, "coordinator"), run=run, source="coordinator") as events:
        driver = Driver(
            run=run,
            expected_workers=workers,
            run_dir=run_dir,
            events=events,
            reserved=reserved,
            profile=known,
            detector=rule,
            patience_s=patience,
        )
        served = None if files is None else server_tls(files)
        server = CoordinatorServer(
            driver, keys=keys, host=host, port=port, tls=served, lifeline=line
        )
        server.run(announce)


def join_command(url: str, *, token_file: Path, tls: TlsFiles | None) -> str:
    """What to type on another machine."""
    address = url.partition("://")[2]
    parts = ["gangline join", address, f"--token-file {token_file}"]
    if tls is not None:
        parts.append(f"--tls-ca {tls.authority}")
        if tls.authority_key is None:
            parts.append("--tls-cert CERTIFICATE --tls-key KEY")
    return " ".join([*parts, "train.py"])
