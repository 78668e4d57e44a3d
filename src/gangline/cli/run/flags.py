# SPDX-License-Identifier: Apache-2.0
"""The flags of `gangline run`, in groups, and what they come to."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated

import typer

from gangline.cli.detectors import DEFAULT_DETECTOR, DetectorFlag, load_detector
from gangline.cli.flag_groups import FlagGroup
from gangline.cli.patience import DEFAULT_PATIENCE_S, PatienceFlag
from gangline.cli.run.options import make_run_dir, parse_numbers, parse_shares
from gangline.planning.allocation.policies import check_allocation
from gangline.protocol.launch import check_non_finite
from gangline.spec.cluster import Cluster, Node
from gangline.spec.errors import UsageError
from gangline.spec.sync import Sync, parse_sync
from gangline.spec.wire import WireSettings, parse_ports


class ClusterFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say how many workers there are, and how unlike they are."""

    nodes: Annotated[int | None, typer.Option(help="How many nodes to emulate.")] = None
    speeds: Annotated[
        str | None, typer.Option(help="The speed of each node, such as 1,0.5,0.2,0.1.")
    ] = None
    cluster: Annotated[
        Path | None, typer.Option(help="A TOML file that describes the nodes instead.")
    ] = None
    workers: Annotated[int | None, typer.Option(help="Workers per node (1).")] = None
    quota: Annotated[
        bool,
        typer.Option("--quota", help="Hold workers to their speeds by CPU quotas, not by pacing."),
    ] = False

    def resolve(self) -> Cluster:
        """The cluster that the flags describe."""
        if self.cluster is not None:
            self._refuse_beside_file()
            return Cluster.from_toml(self.cluster)
        for flag, count in (("--nodes", self.nodes), ("--workers", self.workers)):
            if count is not None and count < 1:
                raise UsageError(f"{flag} must be at least 1, not {count}")
        speeds = self._speeds()
        return Cluster(
            nodes=tuple(
                Node(name=f"n{index}", speed=speed, workers=self.workers or 1)
                for index, speed in enumerate(speeds)
            )
        )

    def _speeds(self) -> list[float]:
        if self.speeds is None:
            return [1.0] * (self.nodes or 1)
        speeds = parse_numbers(self.speeds, flag="--speeds")
        if self.nodes is not None and self.nodes != len(speeds):
            raise UsageError(
                f"--nodes {self.nodes} and --speeds {self.speeds} disagree: one speed per node is "
                f"needed, and there are {len(speeds)}; correct one of them, or leave out --nodes"
            )
        return speeds

    def _refuse_beside_file(self) -> None:
        beside = {"--nodes": self.nodes, "--speeds": self.speeds, "--workers": self.workers}
        given = [flag for flag, value in beside.items() if value is not None]
        if given:
            raise UsageError(
                f"--cluster and {given[0]} cannot be given together: the cluster file says it all; "
                f"write it into {self.cluster}, or leave out --cluster"
            )


class CutFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say how the batch is cut."""

    shares: Annotated[
        str | None, typer.Option(help="Each worker's part of the batch, such as 10,5,2,1.")
    ] = None
    allocation: Annotated[
        str | None,
        typer.Option(help="Who gets how much: balanced, equal, random, kqv or kqv-normalised."),
    ] = None
    sync: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="How groups keep together: full, none, percentage(0.25), local(16), flexible, auto.",
        ),
    ] = "full"

    def resolve(self, *, workers: int) -> tuple[float, ...] | None:
        """The fixed shares, if there are any."""
        if self.allocation is not None:
            check_allocation(self.allocation)
        return parse_shares(self.shares, workers=workers)

    def resolve_sync(self, transport: str | None) -> Sync:
        """How groups of workers are held together."""
        sync = parse_sync(self.sync)
        if sync.is_relaxed and not (transport or "wire").startswith("wire"):
            raise UsageError(
                f"--sync {self.sync} and --transport {transport} cannot be given together: groups that "
                "train at their own pace need the transport wire or wire-tcp"
            )
        return sync


class WireFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags of our own transport."""

    wire_ports: Annotated[
        str | None, typer.Option(help="The ports that workers may listen on, such as 20000-20100.")
    ] = None
    wire_connections: Annotated[
        int, typer.Option(help="TCP connections per link, where one does not fill it.")
    ] = 1
    wire_checksum: Annotated[
        bool, typer.Option("--wire-checksum", help="Check what travels by TCP with a CRC.")
    ] = False

    def resolve(self) -> WireSettings:
        """How the transport is to work."""
        return WireSettings(
            ports=None if self.wire_ports is None else parse_ports(self.wire_ports),
            connections=self.wire_connections,
            checksum=self.wire_checksum,
        )


class SurvivalFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say what the end of a worker means."""

    respawn: Annotated[
        bool, typer.Option("--respawn", help="Start workers again that were killed.")
    ] = False
    max_respawns: Annotated[
        int, typer.Option(min=1, help="How many, over the whole run, with --respawn.")
    ] = 3
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on when a worker ends with an error.")
    ] = False

    patience: PatienceFlag = DEFAULT_PATIENCE_S

    non_finite: Annotated[
        str | None,
        typer.Option(
            metavar="keep|evict",
            help="What to do with a worker whose gradient is no number, or far too large.",
        ),
    ] = None

    detector: DetectorFlag = DEFAULT_DETECTOR

    def check(self) -> None:
        """Refuses what cannot be meant."""
        load_detector(self.detector)
        if self.non_finite is not None:
            check_non_finite(self.non_finite, name="--non-finite")

    @property
    def respawns(self) -> int:
        """How many workers may be started again."""
        return self.max_respawns if self.respawn else 0


class FolderFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say where the run is kept."""

    name: Annotated[str | None, typer.Option(help="The run's name, in runs/NAME.")] = None
    run_dir: Annotated[Path | None, typer.Option(help="The run folder itself.")] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint of the script.")
    ] = False

    def make(self, script: Path) -> tuple[str, Path]:
        """Makes the folder; the run's name, and the folder."""
        return make_run_dir(script, name=self.name, run_dir=self.run_dir, resume=self.resume)
