# SPDX-License-Identifier: Apache-2.0
"""`gangline up`: starts a coordinator, alone or with workers, and says how others join."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.flags.groups import FlagGroup, grouped
from gangline.cli.flags.tls_options import TlsFlags
from gangline.cli.flags.up_flags import AskedFlags, CodeFlags, InviteFlags, PlaceFlags, WorkFlags
from gangline.cli.invitation_lines import code_lines, invitation_lines
from gangline.cli.output import JsonFlag, print_json, say
from gangline.cli.run.cmd_run import launch
from gangline.cli.run.program import ModuleFlag, ProgramCommand
from gangline.files.announcement import Announcement
from gangline.files.config import write_config
from gangline.files.tls import TlsFiles
from gangline.files.tokens import WORKER_TOKEN
from gangline.launch import prepared, resolve
from gangline.launch.joining.inviting import links, needs_tls
from gangline.launch.program import Program, find_program
from gangline.spec.config import ChecksConfig, RunConfig, TlsConfig
from gangline.spec.errors import UsageError
from gangline.spec.profile import ClusterProfile


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command(
        "up",
        cls=ProgramCommand,
        # Whatever follows the script belongs to the script, dashes or not.
        context_settings={"allow_interspersed_args": False},
    )(grouped(up))


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
    asked: AskedFlags,
    code: CodeFlags,
    work: WorkFlags,
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
        for flag in _flags(invite, code, work, show_output=show_output):
            raise UsageError(f"{flag} is for a job with a script: `gangline up {flag} … train.py`")
        config = asked.config(run=place.run, workers=workers)
        _serve_alone(config, place, tls, as_json=as_json)
        return
    program = find_program(script, arguments, module, verb="up")
    listen = invite.listening(place)
    if invite.no_work:
        for flag in _flags(work, show_output=show_output):
            raise UsageError(f"{flag} is about workers here, and --no-work starts none")
        config = asked.config(run=place.run, workers=workers or 1, listen=listen)
        place.run_dir.mkdir(parents=True, exist_ok=True)
        offered = code.offer(program, place.run_dir)
        lines = code_lines(offered)
        _serve_alone(config, place, tls, as_json=as_json, invite=invite, more=lines)
        return
    _refuse_with_workers(place)
    config = asked.config(run=place.name or "", workers=workers or 1, listen=listen)
    checks = ChecksConfig(samples=code.compare_samples)
    config = work.put_to(config, is_described=workers is not None)
    config = msgspec.structs.replace(_with_tls(config, tls), checks=checks)
    run_dir = place.run_dir if "run_dir" in place.given else None
    _work(config, program, run_dir, invite, code, show_output=show_output, as_json=as_json)


def _work(
    config: RunConfig,
    program: Program,
    run_dir: Path | None,
    invite: InviteFlags,
    code: CodeFlags,
    *,
    show_output: bool,
    as_json: bool,
) -> None:
    """A job as `gangline run` has it, to which others are invited."""
    with prepared(resolve(config), program, run_dir=run_dir) as job:
        lines = code_lines(code.offer(program, job.run_dir))
        secret, made = invite.make(job.run_dir)

        def greeting() -> list[str]:
            if not Announcement.path_in(job.run_dir).exists():
                return []
            ways = links(job.run_dir, secret=secret)
            return [*invitation_lines(ways, made, job.run_dir), *lines]

        launch(job, show_output=show_output, as_json=as_json, greeting=greeting)


def _with_tls(config: RunConfig, tls: TlsFlags) -> RunConfig:
    """The same with certificates: the user's, or such as are made, where others can listen."""
    own = tls.files
    return msgspec.structs.replace(
        config,
        tls=TlsConfig(enabled=own is None and (tls.tls or needs_tls(config.listen.host))),
        wire=config.wire if own is None else own.applied_to(config.wire),
    )


def _serve_alone(
    config: RunConfig,
    place: PlaceFlags,
    tls: TlsFlags,
    *,
    as_json: bool,
    invite: InviteFlags | None = None,
    more: Sequence[str] = (),
) -> None:
    """A coordinator alone, until it is told to stop; with an invitation where others are invited."""
    from gangline.coordinator.server import Post
    from gangline.coordinator.server.assembly import announced_host
    from gangline.coordinator.server.process import serve
    from gangline.coordinator.server.until_done import UntilDone

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
        for line in (*lines, *more):
            say(line)

    serve(
        post,
        place.run_dir,
        token_file=token,
        lifeline=UntilDone() if place.until_done else None,
        announce=announce,
    )


def _flags(*groups: FlagGroup, show_output: bool) -> list[str]:
    """The flags of some groups that were given."""
    names = [name for group in groups for name in group.given]
    return sorted(f"--{name.replace('_', '-')}" for name in names) + ["--show-output"] * show_output


def _refuse_with_workers(place: PlaceFlags) -> None:
    for name in ("token_file", "until_done", "reserved", "profile"):
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
