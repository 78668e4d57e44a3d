# SPDX-License-Identifier: Apache-2.0
"""The flags of runs on Slurm."""

from typing import Annotated

import typer

from gangline.cli.flags.groups import FlagGroup, Sets
from gangline.spec.engines.slurm import SlurmConfig


class SlurmFlags(FlagGroup, frozen=True, kw_only=True):
    """What the batch job asks for."""

    slurm_nodes: Annotated[
        int | None, typer.Option(help="With --on slurm: how many nodes."), Sets("slurm.nodes")
    ] = None
    slurm_tasks_per_node: Annotated[
        int | None,
        typer.Option(help="With --on slurm: how many workers on each node (1)."),
        Sets("slurm.tasks_per_node"),
    ] = None
    slurm_time: Annotated[
        str | None,
        typer.Option(help="With --on slurm: the time limit, such as 4:00:00."),
        Sets("slurm.time"),
    ] = None
    slurm_partition: Annotated[
        str | None, typer.Option(help="With --on slurm: the partition."), Sets("slurm.partition")
    ] = None
    slurm_account: Annotated[
        str | None, typer.Option(help="With --on slurm: whose account."), Sets("slurm.account")
    ] = None
    slurm_component: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTIONS",
            help="With --on slurm: a component of a heterogeneous job, such as '--nodes=2 -C gpu'; "
            "each is a group.",
        ),
        Sets("slurm.components"),
    ] = None
    slurm_array: Annotated[
        str | None,
        typer.Option(
            metavar="INDICES",
            help="With --on slurm: an array whose elements join one run as they get nodes, 0-7.",
        ),
        Sets("slurm.array"),
    ] = None
    slurm_requeue: Annotated[
        bool,
        typer.Option(
            "--slurm-requeue",
            help="With --on slurm: go on from the checkpoint in another job when the time is over.",
        ),
        Sets("slurm.requeue"),
    ] = False
    slurm_warning: Annotated[
        int,
        typer.Option(
            metavar="SECONDS",
            help="With --on slurm: how long before the time limit the workers leave.",
        ),
        Sets("slurm.warning_s"),
    ] = SlurmConfig().warning_s
    slurm_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION", help="With --on slurm: a further option of sbatch, --gres=gpu:4."
        ),
        Sets("slurm.options"),
    ] = None
