# SPDX-License-Identifier: Apache-2.0
"""`gangline join`: starts workers on this machine that take part in a job running elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from typer.core import TyperCommand

from gangline.cli.contact import Contact
from gangline.cli.devices import DevicesFlag
from gangline.cli.flag_groups import FlagGroup, grouped
from gangline.cli.notices import NoticeDeadlineFlag, NoticeFlag
from gangline.cli.output import JsonFlag, say, warn
from gangline.cli.run.bringing import BringFlags, Bringing
from gangline.cli.run.cmd_run import launch
from gangline.cli.run.program import ModuleFlag, ProgramCommand
from gangline.cli.run.secret import find_secret, hide_argument
from gangline.cli.tls_options import enrol
from gangline.engines.job import Job
from gangline.files.announcement import Announcement, read_announcement
from gangline.files.tls import TlsFiles
from gangline.files.tokens import WORKER_TOKEN
from gangline.launch.certificates import own_files
from gangline.launch.devices import find_gpus, placed
from gangline.launch.folder import make_run_dir
from gangline.launch.joining import enter, settle, undone_on_error
from gangline.launch.program import find_program
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
from gangline.spec.devices import AUTO as DEVICES_AUTO
from gangline.spec.devices import check_devices
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.link import SCHEME, JoinLink
from gangline.spec.notice import DEFAULT_NOTICE_S, check_notice, check_notice_s
from gangline.spec.wire import WireSettings, parse_ports


class _RunningJob(msgspec.Struct):
    """What of a coordinator's status matters to who joins."""

    run: str


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
    devices: DevicesFlag = DEVICES_AUTO
    notice: NoticeFlag = None
    notice_deadline: NoticeDeadlineFlag = DEFAULT_NOTICE_S
    wire_ports: Annotated[
        str | None,
        typer.Option(help="The ports that these workers may listen on, such as 20000-20100."),
    ] = None
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
                ports=None if self.wire_ports is None else parse_ports(self.wire_ports)
            ),
            survival=SurvivalConfig(
                max_away_s=self.max_away,
                notices=tuple(self.notice or ()),
                notice_s=self.notice_deadline,
            ),
        )
        return placed(config, is_described="workers" in self.given, gpus=find_gpus())


class _Place(NamedTuple):
    """Where a job's coordinator is, and how it is found again."""

    url: str
    token_file: Path
    folder: Path | None
    """The run folder, if it can be reached from here: the coordinator announces itself there."""


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
    link = _link_of(coordinator, tls, token_file=token_file, secret_file=secret_file)
    place = None
    if link is None:
        place = find_place(coordinator, token_file, has_tls=tls.tls_ca is not None)
    program = None
    if script is not None or module is not None:
        program = find_program(script, arguments, module, verb="join ADDRESS")
    config = options.config()
    with _arrived(link, place, tls, secret_file, options) as (contact, folder):
        run = _find_run(contact)
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
    launch(job, show_output=show_output, as_json=as_json)


@contextmanager
def _arrived(
    link: JoinLink | None,
    place: _Place | None,
    tls: JoinTlsFlags,
    secret_file: Path | None,
    options: JoinFlags,
) -> Iterator[tuple[Contact, Path]]:
    """How the coordinator is reached, and a new folder, of which nothing is left after an error."""
    contact = answer = None
    if place is not None:
        contact = Contact(url=place.url, token_file=place.token_file, authority=tls.tls_ca)
        _find_run(contact)  # before there is a folder
    elif link is not None:
        answer = enter(link, find_secret(link, secret_file))
    _, folder = make_run_dir(Path("join"), name=None, run_dir=options.run_dir)
    with undone_on_error(folder):
        if link is not None and answer is not None:
            contact = settle(link, answer, folder)
        assert contact is not None
        yield contact, folder


def _link_of(
    text: str, tls: JoinTlsFlags, *, token_file: Path | None, secret_file: Path | None
) -> JoinLink | None:
    """The link that was given in place of an address; its secret is taken out of the process list."""
    if not text.startswith(SCHEME):
        if secret_file is not None:
            raise UsageError("--secret-file is for a link, gl://…; this is an address or a folder")
        return None
    link = JoinLink.parse(text)
    if not hide_argument(link.secret):
        warn(
            "the secret in the link cannot be taken out of the process list here, where other "
            "users of this machine may read it: next time leave it out, and type it when asked"
        )
    if token_file is not None or tls.tls_ca is not None:
        raise UsageError("--token-file and --tls-ca are not for a link, which stands for both")
    return link


def find_place(address: str, token_file: Path | None, *, has_tls: bool) -> _Place:
    """From an address and a token file, or a run folder, which has both."""
    folder = Path(address)
    if folder.is_dir():
        url = read_announcement(folder).url
        return _Place(url, token_file or folder / WORKER_TOKEN, folder.resolve())
    token = token_file or Path(WORKER_TOKEN)
    url = coordinator_url(address, has_tls=has_tls)
    # A token that lies where a coordinator announces itself lies in its run folder.
    is_beside = Announcement.path_in(token.parent).is_file()
    return _Place(url, token, token.parent.resolve() if is_beside else None)


def coordinator_url(address: str, *, has_tls: bool = False) -> str:
    """The address of a coordinator, from what people write."""
    bare = address.removeprefix("ws://").removeprefix("wss://")
    host, _, port = bare.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"{address!r} is not an address of a coordinator: write HOST:PORT, as `gangline up` "
            "prints it, such as 10.0.0.5:7700, or the job's run folder"
        )
    return f"{'wss' if has_tls or address.startswith('wss:') else 'ws'}://{host}:{port}"


def _find_run(contact: Contact) -> str:
    """The name of the job; asking for it proves that address and token are right."""
    document = contact.ask("/api/status")
    try:
        return msgspec.json.decode(document, type=_RunningJob).run
    except msgspec.DecodeError as error:
        raise LaunchError(f"what answers at {contact.url} is no coordinator: {error}") from error
