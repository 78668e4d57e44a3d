# SPDX-License-Identifier: Apache-2.0
"""`gangline up`: starts a coordinator, alone or with workers, and says how others join."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.detectors import DEFAULT_DETECTOR, DetectorFlag, EverybodyFlag
from gangline.cli.flag_groups import FlagGroup, grouped
from gangline.cli.invitation_lines import invitation_lines
from gangline.cli.output import JsonFlag, print_json, say
from gangline.cli.patience import DEFAULT_PATIENCE_S, PatienceFlag
from gangline.cli.run.cmd_run import launch
from gangline.cli.run.program import ModuleFlag, ProgramCommand
from gangline.cli.tls_options import TlsFlags
from gangline.coordinator.detectors import load_detector
from gangline.files.announcement import Announcement
from gangline.files.config import write_config
from gangline.files.invitations import DEFAULT_LASTS_S, DEFAULT_USES, Invitation, Invitations
from gangline.files.tls import TlsFiles
from gangline.files.tokens import WORKER_TOKEN
from gangline.launch import prepared, resolve
from gangline.launch.inviting import links, listening, needs_tls
from gangline.launch.program import Program, find_program
from gangline.spec.cluster import Cluster
from gangline.spec.config import (
    ListenConfig,
    ManagerConfig,
    RunConfig,
    SurvivalConfig,
    TlsConfig,
)
from gangline.spec.errors import UsageError
from gangline.spec.profile import ClusterProfile
from gangline.spec.wire import WireSettings


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command(
        "up",
        cls=ProgramCommand,
        # Whatever follows the script belongs to the script, dashes or not.
        context_settings={"allow_interspersed_args": False},
    )(grouped(up))


class PlaceFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say which run it is, and where its coordinator is found."""

    run_dir: Annotated[
        Path, typer.Option(help="The run folder (with a script: one of its own in runs/).")
    ] = Path("runs/up")
    name: Annotated[str | None, typer.Option(help="The run's name.")] = None
    host: Annotated[
        str, typer.Option(help="The interface to listen on (with a script: all of them).")
    ] = "127.0.0.1"
    port: Annotated[
        int,
        typer.Option(help="The port; 0 takes a free one (with a script: 7700, if it is free)."),
    ] = 0
    token_file: Annotated[
        Path | None, typer.Option(help="A file that holds the workers' token (made if missing).")
    ] = None
    reserved: Annotated[
        int, typer.Option(min=0, help="Workers bring the numbers below this one themselves.")
    ] = 0
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What is known of each worker's node: plan the structure from it."
        ),
    ] = None

    @property
    def run(self) -> str:
        """The run's name: the folder's, where none was given."""
        return self.name or self.run_dir.name


class InviteFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say how others reach this machine, and for how long they are invited."""

    address: Annotated[
        list[str] | None,
        typer.Option(help="A name or address by which others reach this machine; comes first."),
    ] = None
    invite_minutes: Annotated[
        float, typer.Option(help="For how long the printed link lets machines in.")
    ] = DEFAULT_LASTS_S / 60
    invite_uses: Annotated[int, typer.Option(help="How many machines it lets in.")] = DEFAULT_USES
    no_work: Annotated[
        bool, typer.Option("--no-work", help="Start no worker here, the coordinator alone.")
    ] = False

    def make(self, run_dir: Path) -> tuple[str, Invitation]:
        """An invitation to the run in a folder whose coordinator does not run yet."""
        return Invitations(run_dir).make(lasts_s=self.invite_minutes * 60, uses=self.invite_uses)

    def listening(self, place: PlaceFlags) -> ListenConfig:
        """Where the coordinator of a job that others join listens."""
        return listening(
            place.host if "host" in place.given else None,
            place.port if "port" in place.given else None,
            self.address or (),
        )


class _Asked(FlagGroup, frozen=True, kw_only=True):
    """What a coordinator is told, whoever works."""

    patience: PatienceFlag = DEFAULT_PATIENCE_S
    detector: DetectorFlag = DEFAULT_DETECTOR
    everybody: EverybodyFlag = False

    def config(self, *, run: str, workers: int, listen: ListenConfig | None = None) -> RunConfig:
        load_detector(self.detector)
        return RunConfig(
            run=run,
            cluster=Cluster.of_speeds((1.0,), workers=workers),
            survival=SurvivalConfig(patience_s=self.patience),
            manager=ManagerConfig(detector=self.detector, everybody=self.everybody),
            listen=ListenConfig() if listen is None else listen,
        )


def up(
    script: Annotated[
        Path | None, typer.Argument(help="The script to train with, here and elsewhere.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments, passed on untouched.")
    ] = None,
    *,
    module: ModuleFlag = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="How many workers will join; with a script: start here (1)."),
    ] = None,
    place: PlaceFlags,
    invite: InviteFlags,
    tls: TlsFlags,
    asked: _Asked,
    show_output: Annotated[
        bool, typer.Option("--show-output", "-o", help="Show what all workers here print.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Start a job that other machines join; without a script, a coordinator alone."""
    if script is None and module is None:
        if workers is None:
            raise UsageError(
                "say how many workers will join, with --workers N; or give a script to train with "
                "here, `gangline up train.py`"
            )
        _refuse_without_script(invite, show_output=show_output)
        config = asked.config(run=place.run, workers=workers)
        _serve_alone(config, place, tls, as_json=as_json)
        return
    program = find_program(script, arguments, module, verb="up")
    listen = invite.listening(place)
    if invite.no_work:
        config = asked.config(run=place.run, workers=workers or 1, listen=listen)
        _serve_alone(config, place, tls, as_json=as_json, invite=invite)
        return
    _refuse_with_workers(place)
    config = asked.config(run=place.name or "", workers=workers or 1, listen=listen)
    _work(config, program, place, tls, invite, show_output=show_output, as_json=as_json)


def _work(
    config: RunConfig,
    program: Program,
    place: PlaceFlags,
    tls: TlsFlags,
    invite: InviteFlags,
    *,
    show_output: bool,
    as_json: bool,
) -> None:
    """A job as `gangline run` has it, which listens where others reach it."""
    own = tls.files
    asked = msgspec.structs.replace(
        config,
        tls=TlsConfig(enabled=own is None and (tls.tls or needs_tls(config.listen.host))),
        wire=WireSettings() if own is None else own.applied_to(WireSettings()),
    )
    run_dir = place.run_dir if "run_dir" in place.given else None
    with prepared(resolve(asked), program, run_dir=run_dir) as job:
        secret, made = invite.make(job.run_dir)

        def greeting() -> list[str]:
            if not Announcement.path_in(job.run_dir).exists():
                return []
            return invitation_lines(links(job.run_dir, secret=secret), made, job.run_dir)

        launch(job, show_output=show_output, as_json=as_json, greeting=greeting)


def _serve_alone(
    config: RunConfig,
    place: PlaceFlags,
    tls: TlsFlags,
    *,
    as_json: bool,
    invite: InviteFlags | None = None,
) -> None:
    """A coordinator alone, until it is told to stop; with an invitation where others are invited."""
    from gangline.coordinator.server import Post
    from gangline.coordinator.server.assembly import announced_host
    from gangline.coordinator.server.process import serve

    host, port = place.host, place.port
    if invite is not None:
        host, port = config.listen.host, config.listen.port
    post = Post(
        config=config,
        reserved=place.reserved,
        profile=None if place.profile is None else ClusterProfile.from_file(place.profile),
        host=host,
        port=port,
        announced=None if invite is None else announced_host(host),
    )
    place.run_dir.mkdir(parents=True, exist_ok=True)
    token = place.token_file or place.run_dir / WORKER_TOKEN
    files = tls.resolve(
        place.run_dir,
        run=place.run,
        host=host,
        names=config.listen.names,
        makes=invite is not None and needs_tls(host),
    )

    # Made before the coordinator reads them: from then on they are its own.
    invited = None if invite is None else invite.make(place.run_dir)
    if invite is not None:
        write_config(config, place.run_dir)  # `gangline token` looks there for other names

    def announce(url: str) -> None:
        document = {"run": place.run, "url": url, "token_file": str(token)}
        if invited is None:
            command = join_command(url, token_file=token, tls=files)
            commands, lines = [], [f"workers join it with: {command}"]
        else:
            secret, made = invited
            ways = links(place.run_dir, secret=secret, names=config.listen.names)
            commands = [way.command for way in ways]
            command, lines = commands[0], invitation_lines(ways, made, place.run_dir)
        if as_json:
            print_json({**document, "join": command, **({"joins": commands} if commands else {})})
            return
        say(f"coordinator of {place.run} at {url}, token in {token}")
        for line in lines:
            say(line)

    serve(post, place.run_dir, token_file=token, announce=announce)


def _refuse_without_script(invite: InviteFlags, *, show_output: bool) -> None:
    flags = {f"--{name.replace('_', '-')}" for name in invite.given}
    given = sorted(flags | ({"--show-output"} if show_output else set()))
    if given:
        raise UsageError(
            f"{given[0]} is for a job with a script: `gangline up {given[0]} train.py`"
        )


def _refuse_with_workers(place: PlaceFlags) -> None:
    for name in ("token_file", "reserved", "profile"):
        if name in place.given:
            raise UsageError(
                f"--{name.replace('_', '-')} is for a coordinator alone: leave it out, or give "
                "--no-work"
            )


def join_command(url: str, *, token_file: Path, tls: TlsFiles | None) -> str:
    """What to type on another machine."""
    address = url.partition("://")[2]
    parts = ["gangline join", address, f"--token-file {token_file}"]
    if tls is not None:
        parts.append(f"--tls-ca {tls.authority}")
        if tls.authority_key is None:
            parts.append("--tls-cert CERTIFICATE --tls-key KEY")
    return " ".join([*parts, "train.py"])
