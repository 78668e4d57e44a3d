# SPDX-License-Identifier: Apache-2.0
"""The flags by which other tools are given a run's figures."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from gangline.cli.flags.groups import FlagGroup
from gangline.cli.output import warn
from gangline.engines.job import Job
from gangline.observe.exporters import ExportThread, Target, find_target


class ToolFlags(FlagGroup, frozen=True, kw_only=True):
    """One flag for each tool: where it is."""

    tensorboard: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write the run's figures for TensorBoard, in DIR/NAME."),
    ] = None
    wandb: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Give them to Weights & Biases, as a run of PROJECT."),
    ] = None
    mlflow: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Give them to MLflow, at this tracking URI."),
    ] = None
    opentelemetry: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send them to an OpenTelemetry collector (OTLP, HTTP)."),
    ] = None

    def targets(self) -> list[Target]:
        """The tools that were asked for. Raises UsageError where one is not installed."""
        asked = {name: getattr(self, name) for name in self.__struct_fields__ if name != "given"}
        return [find_target(flag, where) for flag, where in asked.items() if where is not None]


@dataclass
class Ending:
    """How the job ended, for those who are told at its end."""

    status: str = "failed"


@contextmanager
def exported(job: Job, targets: Sequence[Target]) -> Iterator[Ending]:
    """Gives the job's figures to these tools meanwhile, and says at its end how it ended."""
    ending = Ending()
    thread = ExportThread(job.run_dir, targets, run=job.run, tell=warn) if targets else None
    try:
        yield ending
    finally:
        if thread is not None:
            thread.close(ending.status)
