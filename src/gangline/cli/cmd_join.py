# SPDX-License-Identifier: Apache-2.0
"""`gangline join`: starts workers on this machine that take part in a job running elsewhere."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from gangline.cli.cmd_run import launch
from gangline.cli.contact import ask
from gangline.cli.output import JsonFlag, say
from gangline.cli.run_options import check_script, check_transport, make_run_dir
from gangline.engines.job import Job
from gangline.spec.cluster import Node
from gangline.spec.errors import LaunchError, UsageError


class _RunningJob(msgspec.Struct):
    """What of a coordinator's status matters to who joins."""

    run: str


class _JoinCommand(TyperCommand):
    """Takes its flags between the address and the script; what follows that is the script's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-"):
            address, *rest = args
            end = self._num_own(rest)
            args = [*rest[:end], address, *rest[end:]]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def _num_own(self, args: list[str]) -> int:
        """How many of the arguments are flags and their values."""
        is_flag = {
            name: getattr(parameter, "is_flag", False)
            for parameter in self.params
            for name in parameter.opts
        }
        index = 0
        while index < len(args) and args[index].startswith("-"):
            index += 1 if "=" in args[index] or is_flag.get(args[index], True) else 2
        return index


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command(
        "join",
        cls=_JoinCommand,
        # Whatever follows the script belongs to the script, dashes or not.
        context_settings={"allow_interspersed_args": False},
    )(join)


def join(
    coordinator: Annotated[str, typer.Argument(help="Where the job's coordinator is: HOST:PORT.")],
    script: Annotated[Path, typer.Argument(help="The script that the job's workers run.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments, passed on untouched.")
    ] = None,
    token_file: Annotated[
        Path, typer.Option(help="The file with the run's token, as on the coordinator's machine.")
    ] = Path("token"),
    workers: Annotated[int, typer.Option(min=1, help="How many workers to start.")] = 1,
    speed: Annotated[
        float, typer.Option(help="Emulate machines of this fraction of the speed.")
    ] = 1.0,
    transport: Annotated[
        str | None, typer.Option(help="What moves the gradients, as in the running job.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="The folder for these workers' logs (runs/join-TIME).")
    ] = None,
    show_output: Annotated[
        bool, typer.Option("--show-output", "-o", help="Show what the workers print.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Add workers on this machine to a job, before it begins or while it runs."""
    url = coordinator_url(coordinator)
    check_script(script)
    check_transport(transport)
    node = Node(name="join", speed=speed, workers=workers)
    run = _find_run(url, token_file)
    _, folder = make_run_dir(Path("join"), name=None, run_dir=run_dir)
    job = Job(
        run=run,
        run_dir=folder.resolve(),
        script=script.resolve(),
        arguments=tuple(arguments or ()),
        speeds=(node.speed,) * node.workers,
        transport=transport,
        coordinator=url,
        token=token_file.resolve(),
    )
    if not as_json:
        say(f"joining {run} at {coordinator}")
    launch(job, show_output=show_output, as_json=as_json)


def coordinator_url(address: str) -> str:
    """The address of a coordinator, from what people write."""
    host, _, port = address.removeprefix("ws://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"{address!r} is not an address of a coordinator: write HOST:PORT, as `gangline up` "
            "prints it, such as 10.0.0.5:7700"
        )
    return f"ws://{host}:{port}"


def _find_run(url: str, token_file: Path) -> str:
    """The name of the job; asking for it proves that address and token are right."""
    document = ask(url, "/api/status", token_file=token_file)
    try:
        return msgspec.json.decode(document, type=_RunningJob).run
    except msgspec.DecodeError as error:
        raise LaunchError(f"what answers at {url} is no coordinator: {error}") from error
