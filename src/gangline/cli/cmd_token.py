# SPDX-License-Identifier: Apache-2.0
"""`gangline token`: makes, lists and withdraws invitations to a running job."""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.invitation_lines import invitation_lines
from gangline.cli.output import JsonFlag, print_json, say
from gangline.files.invitations import DEFAULT_LASTS_S, DEFAULT_USES
from gangline.launch.joining.inviting import list_invitations, make_invitation, withdraw_invitation

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The job's run folder.")]
OperatorToken = Annotated[
    Path | None,
    typer.Option(help="An operator's token (default: operator-token in the run folder)."),
]


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    verbs = typer.Typer(help="Make, list and withdraw invitations to a running job.")
    verbs.command("make")(make)
    verbs.command("list")(list_all)
    verbs.command("withdraw")(withdraw)
    app.add_typer(verbs, name="token")


def make(
    run_dir: RunDir,
    minutes: Annotated[
        float, typer.Option(help="For how long it lets machines in.")
    ] = DEFAULT_LASTS_S / 60,
    uses: Annotated[int, typer.Option(help="How many machines it lets in.")] = DEFAULT_USES,
    token_file: OperatorToken = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a line by which other machines join."""
    made, ways = make_invitation(run_dir, lasts_s=minutes * 60, uses=uses, token_file=token_file)
    if as_json:
        print_json({**msgspec.to_builtins(made), "joins": [way.command for way in ways]})
        return
    for line in invitation_lines(ways, made, run_dir):
        say(line)
    say(f"its name is {made.name}: `gangline token withdraw {run_dir} {made.name}` ends it")


def list_all(run_dir: RunDir, token_file: OperatorToken = None, as_json: JsonFlag = False) -> None:
    """List the invitations, oldest first; never their secrets."""
    found = list_invitations(run_dir, token_file=token_file)
    if as_json:
        print_json(found)
        return
    say(f"{'name':<10}{'state':<11}{'machines':<11}ends")
    for one in found:
        ends = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(one.ends_s))
        machines = f"{one.used} of {one.uses}"
        say(f"{one.name:<10}{one.state:<11}{machines:<11}{ends}")


def withdraw(
    run_dir: RunDir,
    name: Annotated[str, typer.Argument(help="The invitation's name, as `list` shows it.")],
    token_file: OperatorToken = None,
    as_json: JsonFlag = False,
) -> None:
    """End an invitation; machines that it let in stay."""
    ended = withdraw_invitation(run_dir, name, token_file=token_file)
    if as_json:
        print_json(ended)
    else:
        say(f"invitation {ended.name} is {ended.state}; it had let in {ended.used} of {ended.uses}")
