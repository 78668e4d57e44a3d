# SPDX-License-Identifier: Apache-2.0
"""`gangline up`: starts a coordinator alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.output import JsonFlag, print_json, say
from gangline.spec.announcement import Announcement
from gangline.spec.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("up")(up)


def up(
    workers: Annotated[int, typer.Option(min=1, help="How many workers will join.")],
    run_dir: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/up"),
    name: Annotated[str | None, typer.Option(help="The run's name.")] = None,
    host: Annotated[str, typer.Option(help="The interface to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 0,
    token_file: Annotated[
        Path | None, typer.Option(help="A file that holds the run's token (made if missing).")
    ] = None,
    reserved: Annotated[
        int, typer.Option(min=0, help="Workers bring the numbers below this one themselves.")
    ] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Start a coordinator alone, and say how workers find it."""
    from gangline.engines.coordination import write_token
    from gangline.eventlog import EventWriter, log_path
    from gangline.runtime.coordinator import CoordinatorServer, Hub
    from gangline.runtime.coordinator.journal import open_journal

    run_dir.mkdir(parents=True, exist_ok=True)
    path = token_file or run_dir / "token"
    token = path.read_text().strip() if path.exists() else write_token(path)
    if len(token) < 16:
        raise UsageError(f"the token in {path} is too short: delete the file to have one made")
    run = name or run_dir.name

    def announce(url: str) -> None:
        Announcement(run=run, url=url, pid=os.getpid()).write(run_dir)
        command = f"gangline join {url.removeprefix('ws://')} --token-file {path} train.py"
        if as_json:
            print_json({"run": run, "url": url, "token_file": str(path), "join": command})
        else:
            say(f"coordinator of {run} at {url}, token in {path}")
            say(f"workers join it with: {command}")

    with EventWriter(log_path(run_dir, "coordinator"), run=run, source="coordinator") as events:
        journal = open_journal(run_dir, events)
        hub = Hub(
            run=run, expected_workers=workers, events=events, reserved=reserved, journal=journal
        )
        CoordinatorServer(hub, token=token, host=host, port=port).run(announce)
