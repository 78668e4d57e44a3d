# SPDX-License-Identifier: Apache-2.0
"""`gangline sbatch`: writes the script of a batch job, for who submits it by themselves."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.flags.engines.slurm import SlurmFlags
from gangline.cli.flags.groups import grouped
from gangline.cli.flags.tls_options import TlsFlags
from gangline.cli.output import say
from gangline.cli.run.configuring import configured
from gangline.cli.run.flags import (
    ClusterFlags,
    ExchangeFlags,
    FolderFlags,
    HostFlags,
    SurvivalFlags,
)
from gangline.cli.run.program import ModuleFlag, ProgramCommand
from gangline.files.config import shown
from gangline.launch.engines.slurm.engine import written
from gangline.launch.program import find_program
from gangline.spec.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command(
        "sbatch",
        cls=ProgramCommand,
        context_settings={"allow_interspersed_args": False},
    )(grouped(sbatch))


def sbatch(
    script: Annotated[
        Path | None, typer.Argument(help="The python script that every worker runs.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments, passed on untouched.")
    ] = None,
    *,
    module: ModuleFlag = None,
    slurm: SlurmFlags,
    exchange: ExchangeFlags,
    survival: SurvivalFlags,
    hosts: HostFlags,
    place: FolderFlags,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The file to write (else the script is printed)."),
    ] = None,
) -> None:
    """Write the script of a Slurm job that runs a python script, and submit nothing."""
    program = find_program(script, arguments, module, verb="sbatch")
    if hosts.on not in (None, "slurm"):
        raise UsageError(f"--on {hosts.on}: this verb writes a script for Slurm; leave it out")
    asked = msgspec.structs.replace(hosts, on="slurm", given=hosts.given | {"on"})
    config = configured(
        place.config,
        *(exchange, survival, asked, slurm, place),
        cluster=ClusterFlags(),
        tls=TlsFlags(),
    )
    if place.dry_run:
        typer.echo(shown(config))
        return
    text = written(config, program, run_dir=place.run_dir)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    say(f"wrote {output}: submit it by `sbatch {output}`")
