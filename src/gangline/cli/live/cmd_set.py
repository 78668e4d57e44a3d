# SPDX-License-Identifier: Apache-2.0
"""`gangline set`: changes how a running job works."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.output import JsonFlag, print_json, say
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.spec.errors import UsageError
from gangline.spec.sync import parse_sync

SETTINGS = ("sync",)


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("set")(set_)


def set_(
    run_dir: Annotated[Path, typer.Argument(help="The run folder.")],
    setting: Annotated[str, typer.Argument(metavar="sync", help="What to change.")],
    value: Annotated[
        str,
        typer.Argument(
            help="full, none, percentage(0.25), local(16), flexible or auto, for sync; or by parameter "
            "servers: bsp, asp, ssp(4), backup(1)."
        ),
    ],
    token_file: Annotated[
        Path | None, typer.Option(help="The operator's token file (default: in the run folder).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change how tightly the groups of a running job are held together."""
    from gangline.protocol.status import SyncRequest

    if setting not in SETTINGS:
        raise UsageError(f"{setting!r} cannot be set; what can be: {', '.join(SETTINGS)}")
    sync = parse_sync(value)
    contact = RunContact(run_dir, token_file=token_file or run_dir / OPERATOR_TOKEN)
    contact.ask("/api/sync", body=msgspec.json.encode(SyncRequest(sync=str(sync))))
    run = contact.announcement.run
    if as_json:
        print_json({"run": run, "sync": str(sync)})
    else:
        say(f"asked {run} to hold its groups together by {sync}")
