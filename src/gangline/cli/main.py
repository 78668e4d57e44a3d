# SPDX-License-Identifier: Apache-2.0
"""The entry point of the command `gangline`. Nothing here imports torch: it must start quickly."""

from __future__ import annotations

import signal
import sys
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import typer

import gangline
from gangline.cli import (
    cmd_apply,
    cmd_compare,
    cmd_demo,
    cmd_doctor,
    cmd_plan,
    cmd_report,
    cmd_token,
    cmd_up,
)
from gangline.cli.live import (
    cmd_chaos,
    cmd_dashboard,
    cmd_leave,
    cmd_orders,
    cmd_replan,
    cmd_set,
    cmd_status,
    cmd_top,
)
from gangline.cli.output import EXIT_USAGE, exit_code_of, print_error
from gangline.cli.probe import cmd_probe
from gangline.cli.run import cmd_join, cmd_run, cmd_sbatch
from gangline.cli.run.program import MODULE_FLAGS
from gangline.cli.simulate import cmd_simulate, cmd_simulate_loop
from gangline.spec.errors import GanglineError

if TYPE_CHECKING:
    from collections.abc import Sequence

# typer carries its own copy of click, or uses the installed one, depending on its version.
_ParseError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="gangline",
    help="Train one PyTorch model on whatever machines you have.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"gangline {gangline.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train one PyTorch model on whatever machines you have."""


for _verb in (
    cmd_demo,
    cmd_run,
    cmd_sbatch,
    cmd_up,
    cmd_join,
    cmd_token,
    cmd_leave,
    cmd_orders,
    cmd_chaos,
    cmd_status,
    cmd_top,
    cmd_dashboard,
    cmd_replan,
    cmd_set,
    cmd_report,
    cmd_compare,
    cmd_simulate,
    cmd_simulate_loop,
    cmd_probe,
    cmd_plan,
    cmd_doctor,
    cmd_apply,
):
    _verb.register(app)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` is ours: what follows a script belongs to the script."""
    own = takewhile(lambda one: not one.endswith(".py") and one not in MODULE_FLAGS, arguments)
    return "--json" in own


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    as_json = _wants_json(arguments)
    try:
        code = app(args=list(arguments) or ["--help"], standalone_mode=False)
    except GanglineError as error:
        print_error(str(error), kind=type(error).__name__, as_json=as_json)
        return exit_code_of(error)
    except _ParseError as error:
        message = getattr(error, "format_message", error.__str__)()
        print_error(f"{message} (see `gangline --help`)", kind="UsageError", as_json=as_json)
        return EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        return 128 + signal.SIGINT
    return code if isinstance(code, int) else 0


def main() -> None:
    """The console command."""
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
