# SPDX-License-Identifier: Apache-2.0
"""`gangline dashboard`: prints a link to the live view of a running job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.output import JsonFlag, print_json, say
from gangline.files.tokens import OBSERVER_TOKEN, OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("dashboard")(dashboard)


def dashboard(
    run_dir: Annotated[Path, typer.Argument(help="The run folder.")],
    operator: Annotated[
        bool, typer.Option("--operator", help="Let in somebody who may change the job, too.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A token file of that role (default: the one in the run folder)."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a link to the live view of a running job: it lets one browser in, within 10 minutes."""
    from gangline.protocol.live import CodeAnswer

    own = run_dir / (OPERATOR_TOKEN if operator else OBSERVER_TOKEN)
    contact = RunContact(run_dir, token_file=token_file or own)
    answer = contact.ask("/api/dashboard/code", body=b"{}")
    made = msgspec.json.decode(answer, type=CodeAnswer)
    url = contact.announcement.url.replace("ws", "http", 1)
    link = f"{url}/dashboard#{made.code}"
    if as_json:
        print_json({"url": link, "role": made.role, "lasts_s": made.lasts_s})
        return
    say(link)
    say(f"it lets one browser in as {made.role}, once, within {made.lasts_s / 60:.0f} minutes")
    if url.startswith("https"):
        say("the certificate is the run's own: the browser will ask whether you trust it")
