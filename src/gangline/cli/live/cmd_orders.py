# SPDX-License-Identifier: Apache-2.0
"""What an operator may order while a job runs: exclude, take-back, pause, resume, checkpoint, end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gangline.cli.output import JsonFlag, print_json, say
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run folder.")]
Worker = Annotated[int, typer.Option(help="The worker's number, as `gangline status` shows it.")]
TokenFile = Annotated[
    Path | None, typer.Option(help="The operator's token file (default: in the run folder).")
]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command."""
    app.command("exclude")(exclude)
    app.command("take-back")(take_back)
    app.command("pause")(pause)
    app.command("resume")(resume)
    app.command("checkpoint")(checkpoint)
    app.command("end")(end)


def exclude(
    run_dir: RunDir, worker: Worker, token_file: TokenFile = None, as_json: JsonFlag = False
) -> None:
    """Keep a worker out until it is taken back: the others go on without it at once."""
    run = _order(run_dir, "exclude", token_file, worker=worker, is_out=True)
    _tell(as_json, {"run": run, "excluded": worker}, f"worker {worker} is kept out of {run}")


def take_back(
    run_dir: RunDir, worker: Worker, token_file: TokenFile = None, as_json: JsonFlag = False
) -> None:
    """Let a worker come back that is out: kept out by you, or for being slow."""
    run = _order(run_dir, "exclude", token_file, worker=worker, is_out=False)
    told = f"worker {worker} comes back into {run} when the present group has begun to train"
    _tell(as_json, {"run": run, "taken_back": worker}, told)


def pause(run_dir: RunDir, token_file: TokenFile = None, as_json: JsonFlag = False) -> None:
    """Have the job stand still after its present step; `gangline resume` has it go on."""
    run = _order(run_dir, "pause", token_file, is_paused=True)
    _tell(as_json, {"run": run, "is_paused": True}, f"{run} stands still after its present step")


def resume(run_dir: RunDir, token_file: TokenFile = None, as_json: JsonFlag = False) -> None:
    """Have a job go on that was paused."""
    run = _order(run_dir, "pause", token_file, is_paused=False)
    _tell(as_json, {"run": run, "is_paused": False}, f"{run} goes on")


def checkpoint(run_dir: RunDir, token_file: TokenFile = None, as_json: JsonFlag = False) -> None:
    """Have a checkpoint written after the present step, whether one is due or not."""
    run = _order(run_dir, "checkpoint", token_file)
    told = (
        f"{run} writes a checkpoint when its state is that of the whole job: after its present step"
    )
    _tell(as_json, {"run": run, "checkpoint": True}, f"{told}, or epoch where groups train apart")


def end(run_dir: RunDir, token_file: TokenFile = None, as_json: JsonFlag = False) -> None:
    """End a job politely: everybody leaves between two steps, and the last one keeps a checkpoint."""
    run = _order(run_dir, "end", token_file)
    _tell(as_json, {"run": run, "ending": True}, f"everybody leaves {run}, which ends")


def _order(run_dir: Path, name: str, token_file: Path | None, **asked: Any) -> str:
    """Gives an order; the run that it was given to."""
    contact = RunContact(run_dir, token_file=token_file or run_dir / OPERATOR_TOKEN)
    contact.ask(f"/api/{name}", body=msgspec.json.encode(asked))
    return contact.announcement.run


def _tell(as_json: bool, document: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(document)
    else:
        say(text)
