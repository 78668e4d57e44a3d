# SPDX-License-Identifier: Apache-2.0
"""`gangline status`: what a run's coordinator knows right now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from gangline.cli.output import JsonFlag, out, print_json, say
from gangline.files.tokens import OBSERVER_TOKEN
from gangline.launch.joining.contact import RunContact

if TYPE_CHECKING:
    from gangline.protocol.status import WorkerStatus


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("status")(status)


def status(
    run_dir: Annotated[Path, typer.Argument(help="The run folder.")],
    token_file: Annotated[
        Path | None, typer.Option(help="An observer's token file (default: in the run folder).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show who takes part in a running job, with which shares, and what was decided last."""
    from gangline.protocol.status import Status

    contact = RunContact(run_dir, token_file=token_file or run_dir / OBSERVER_TOKEN)
    found = msgspec.json.decode(contact.ask("/api/status"), type=Status)
    if as_json:
        print_json(found)
        return
    shares = (
        {} if found.view is None else dict(zip(found.view.members, found.view.shares, strict=True))
    )
    if found.view is None:
        here = sum(worker.is_connected for worker in found.workers)
        say(f"{found.run}: starting, {here} of {found.expected_workers} workers are here")
    else:
        how = ", paused: it stands still between two steps" if found.is_paused else ""
        mode = f", {found.sync}" if found.sync else ""
        say(f"{found.run}: step {max(found.step, 0)}, view {found.view.number}{mode}{how}")
    if found.logged:
        values = (f"{k} {'nan' if v is None else f'{v:.6g}'}" for k, v in found.logged.items())
        say(", ".join(values))
    table = Table("worker", "host", "state", "step", "share", "compute", box=None)
    for worker in found.workers:
        table.add_row(
            str(worker.worker),
            f"{worker.host} ({worker.pid})",
            _state(worker, is_paused=found.is_paused and worker.worker in shares),
            str(worker.step),
            str(shares.get(worker.worker, "-")),
            f"{worker.compute_s * 1000:.1f} ms",
        )
    out().print(table)
    for reason in found.decisions[-5:]:
        say(reason)


def _state(worker: WorkerStatus, *, is_paused: bool) -> str:
    if not worker.is_connected:
        return f"{worker.state}, not connected"
    return "paused" if is_paused else worker.state
