# SPDX-License-Identifier: Apache-2.0
"""`gangline join`: starts workers on this machine that take part in a job running elsewhere."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from gangline.cli.flags.devices import DevicesFlag
from gangline.cli.flags.groups import FlagGroup, grouped
from gangline.cli.flags.notices import NoticeDeadlineFlag, NoticeFlag
from gangline.cli.flags.tls_options import enrol
from gangline.cli.output import JsonFlag, say, warn
from gangline.cli.run.arriving import arrived, find_place, find_run, link_of
from gangline.cli.run.bringing import BringFlags, Bringing
from gangline.cli.run.cmd_run import launch
from gangline.cli.run.program import ModuleFlag, ProgramCommand
from gangline.engines.job import Job
from gangline.files.tls import TlsFiles
from gangline.launch.certificates import own_files
from gangline.launch.devices import find_gpus, placed
from gangline.launch.joining.contact import Contact
from gangline.launch.program import find_program
from gangline.launch.reachability import must_call_out
from gangline.spec.cluster import Cluster, Node
from gangline.spec.config import (
    DEFAULT_MAX_AWAY_S,
    ChecksConfig,
    ComputeConfig,
    ExchangeConfig,
    RunConfig,
    SurvivalConfig,
    check_transport,
)
from gangline.spec.errors import UsageError
from gangline.spec.machines.devices import AUTO as DEVICES_AUTO
from gangline.spec.machines.devices import check_devices
from gangline.spec.machines.notice import DEFAULT_NOTICE_S, check_notice, check_notice_s
from gangline.spec.wire import WireSettings, parse_ports


class _JoinCommand(ProgramCommand):
    """Takes its flags between the address and the script; what follows that is the script's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-"):
            address, *rest = args
            end = self.num_own(rest)
            args = [*rest[:end], address, *rest[end:]]
        # The address ends our flags: what follows it, or a module, is not ours.
        parsed: list[str] = TyperCommand.parse_args(self, ctx, args)
        return parsed


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command(
        "join",
        cls=_JoinCommand,
        # Whatever follows the script belongs to the script, dashes or not.
        context_settings={"allow_interspersed_args": False},
    )(grouped(join))


class JoinTlsFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags of who joins a job that uses TLS."""

    tls_ca: Annotated[
        Path | None,
        typer.Option(help="Who vouches for the coordinator and the others; means TLS."),
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(help="This machine's certificate (made if the run makes them).")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key.")] = None

    def files(self, contact: Contact, folder: Path) -> TlsFiles | None:
        """This machine's certificates; None where the job does without TLS."""
        if contact.authority is None and self.tls_cert is None and self.tls_key is None:
            return None
        if self.tls_cert is not None or self.tls_key is not None:
            return own_files(self.tls_cert, self.tls_key, contact.authority)
        return enrol(contact, folder)


class JoinFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say which workers join, and where their logs go."""

    wait: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="How long to try again where no coordinator answers yet (0).",
        ),
    ] = 0.0
    left_exit_code: Annotated[
        int,
        typer.Option(
            min=0,
            max=255,
            help="What to return when these workers left because this machine ends (0).",
        ),
    ] = 0
    max_away: Annotated[
        float,
        typer.Option(
            min=1.0,
            metavar="SECONDS",
            help="How long workers wait for a coordinator that is away when they need it.",
        ),
    ] = DEFAULT_MAX_AWAY_S
    workers: Annotated[int, typer.Option(min=1, help="How many workers to start.")] = 1
    speed: Annotated[
        float, typer.Option(help="Emulate machines of this fraction of the speed.")
    ] = 1.0
    transport: Annotated[
        str | None, typer.Option(help="What moves the gradients, as in the running job.")
    ] = None
    wire_ports: Annotated[
        str | None,
        typer.Option(help="The ports that these workers may listen on, such as 20000-20100."),
    ] = None
    wire_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="The name or address at which others reach these workers, if not the usual one.",
        ),
    ] = None
    wire_calls_out: Annotated[
        bool,
        typer.Option(
            "--wire-calls-out",
            help="Have these workers open all connections (found out by itself where that must be).",
        ),
    ] = False
    devices: DevicesFlag = DEVICES_AUTO
    notice: NoticeFlag = None
    notice_deadline: NoticeDeadlineFlag = DEFAULT_NOTICE_S
    run_dir: Annotated[
        Path | None, typer.Option(help="The folder for these workers' logs (runs/join-TIME).")
    ] = None

    def config(self) -> RunConfig:
        """What these workers are asked."""
        node = Node(name="join", speed=self.speed, workers=self.workers)
        check_transport(self.transport, name="--transport")
        for notice in self.notice or ():
            check_notice(notice, name="--notice")
        check_notice_s(self.notice_deadline, name="--notice-deadline")
        check_devices(self.devices, name="--devices")
        config = RunConfig(
            cluster=Cluster(nodes=(node,)),
            compute=ComputeConfig(devices=self.devices),
            exchange=ExchangeConfig(transport=self.transport),
            wire=WireSettings(
                ports=None if self.wire_ports is None else parse_ports(self.wire_ports),
                address=self.wire_address,
                calls_out=self.wire_calls_out,
            ),
            survival=SurvivalConfig(
                max_away_s=self.max_away,
                notices=tuple(self.notice or ()),
                notice_s=self.notice_deadline,
            ),
        )
        return placed(config, is_described="workers" in self.given, gpus=find_gpus())


def join(
    coordinator: Annotated[
        str,
        typer.Argument(
            metavar="LINK|HOST:PORT|RUN_DIR",
            help="The link to the job, where its coordinator is, or its run folder.",
        ),
    ],
    script: Annotated[
        Path | None,
        typer.Argument(help="The script that the job's workers run; else it is brought here."),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments, passed on untouched.")
    ] = None,
    *,
    module: ModuleFlag = None,
    tls: JoinTlsFlags,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="The file with the workers' token (token; of a run folder: the one in it)."
        ),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(help="A file with the link's secret, if the link has none; - is a pipe."),
    ] = None,
    options: JoinFlags,
    code: BringFlags,
    show_output: Annotated[
        bool,
        typer.Option(
            "--show-output", "-o", help="Show what all workers print, not only the first."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Add workers on this machine to a job, before it begins or while it runs."""
    link = link_of(
        coordinator, authority=tls.tls_ca, token_file=token_file, secret_file=secret_file
    )
    place = None
    if link is None:
        place = find_place(coordinator, token_file, has_tls=tls.tls_ca is not None)
    program = None
    if script is not None or module is not None:
        program = find_program(script, arguments, module, verb="join ADDRESS")
    config = options.config()
    with arrived(
        link,
        place,
        authority=tls.tls_ca,
        secret_file=secret_file,
        run_dir=options.run_dir,
        wait_s=options.wait,
    ) as (contact, folder):
        run = find_run(contact)
        if link is not None and run != link.run:
            raise UsageError(f"the link is of run {link.run!r}, and run {run!r} answers there")
        config = _as_reached(config, contact)
        offered = code.compared(contact)
        workplace = None
        if program is None:
            bringing = Bringing(offered, contact, folder.resolve(), run, code.yes, as_json)
            program, workplace = bringing.bring()
        checks = ChecksConfig(
            samples=offered.compare_samples, allow_differences=code.allow_differences
        )
        job = Job(
            config=msgspec.structs.replace(config, run=run, checks=checks),
            run_dir=folder.resolve(),
            script=program.script,
            module=program.module,
            arguments=program.arguments,
            folder=workplace,
            tls=tls.files(contact, folder),
            coordinator=contact.url,
            token=contact.token_file.resolve(),
            announced_in=None if place is None else place.folder,
        )
    if not as_json:
        say(f"joining {run} at {contact.url.partition('://')[2]}")
    launch(job, show_output=show_output, as_json=as_json, left_exit_code=options.left_exit_code)


def _as_reached(config: RunConfig, contact: Contact) -> RunConfig:
    """Where others do not get through to this machine, its workers open all connections."""
    if config.wire.calls_out or config.wire.address is not None:
        return config
    why = must_call_out(contact.url, config.wire.ports, contact.ask)
    if why is None:
        return config
    warn(
        f"{why}: workers here open all connections themselves. That works as long as one other machine "
        "can be called; `gangline doctor HOST:PORT` says what to open"
    )
    return msgspec.structs.replace(
        config, wire=msgspec.structs.replace(config.wire, calls_out=True)
    )
