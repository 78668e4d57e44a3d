# SPDX-License-Identifier: Apache-2.0
"""`gangline replan`: gives a running job another structure, without ending it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gangline.cli.output import JsonFlag, print_json, say
from gangline.eventlog import read_run
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.launch.structure import structure_of_plan
from gangline.spec.config import AUTO, FLAT
from gangline.spec.errors import LogError, UsageError
from gangline.spec.event import RunStarted
from gangline.spec.profile import ClusterProfile

if TYPE_CHECKING:
    from gangline.protocol.status import ReplanRequest


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("replan")(replan)


def replan(
    run_dir: Annotated[Path, typer.Argument(help="The run folder.")],
    structure: Annotated[
        str,
        typer.Argument(
            metavar="auto|flat|PLAN",
            help="What to exchange in: planned from what is measured, one ring, or a plan's tree.",
        ),
    ] = AUTO,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With auto: plan from this, as `gangline probe RUN_DIR` writes it."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="The operator's token file (default: in the run folder).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change who exchanges with whom in a running job, at a step that its workers agree on."""
    from gangline.protocol.status import ReplanRequest

    contact = RunContact(run_dir, token_file=token_file or run_dir / OPERATOR_TOKEN)
    if profile is not None and structure != AUTO:
        raise UsageError(f"--profile is what `{AUTO}` plans from: leave it out with {structure}")
    if structure in (AUTO, FLAT):
        known = None if profile is None else _known(profile, run_dir)
        request = ReplanRequest(is_auto=structure == AUTO, profile=known)
    else:
        nodes = _nodes_of(run_dir)
        request = ReplanRequest(structure=structure_of_plan(structure, nodes, flag="the plan"))
    contact.ask("/api/replan", body=msgspec.json.encode(request))
    run, shown = contact.announcement.run, _shown(request)
    if as_json:
        print_json({"run": run, "asked": shown})
    else:
        say(f"asked {run} for another structure: {shown}")


def _known(path: Path, run_dir: Path) -> ClusterProfile:
    from gangline.cli.probe.live_job import in_worker_order

    return in_worker_order(ClusterProfile.from_file(path), run_dir)


def _shown(request: ReplanRequest) -> str:
    if request.is_auto:
        return "planned from what is measured"
    return "all in one ring" if request.structure is None else str(request.structure)


def _nodes_of(run_dir: Path) -> list[str]:
    """The name of each worker's node, as the launcher wrote it down."""
    started = [
        event
        for event in read_run(run_dir, notes=[])
        if isinstance(event, RunStarted) and not event.is_joining
    ]
    if not started:
        raise LogError(
            f"the log in {run_dir} does not say which nodes the workers are on, so a plan's nodes "
            "cannot be found among them; `gangline replan RUN_DIR auto` needs no names"
        )
    return started[-1].nodes
