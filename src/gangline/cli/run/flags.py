# SPDX-License-Identifier: Apache-2.0
"""The flags of `gangline run`, in groups. Each option is a field of the run's configuration."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gangline.cli.flags.detectors import DEFAULT_DETECTOR, DetectorFlag, EverybodyFlag
from gangline.cli.flags.devices import DevicesFlag
from gangline.cli.flags.groups import FlagGroup, Sets
from gangline.cli.flags.notices import NoticeDeadlineFlag, NoticeFlag
from gangline.cli.flags.patience import DEFAULT_PATIENCE_S, PatienceFlag
from gangline.cli.run.numbers import parse_numbers
from gangline.spec.cluster import Cluster
from gangline.spec.config import (
    AUTO,
    BatchConfig,
    EventsConfig,
    ExchangeConfig,
    HostsConfig,
    SurvivalConfig,
)
from gangline.spec.engines.engine import ENGINES, HOSTS, LOCAL
from gangline.spec.errors import UsageError
from gangline.spec.faults import FaultPlan
from gangline.spec.machines.notice import DEFAULT_NOTICE_S
from gangline.spec.wire import parse_ports


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
    devices: Annotated[DevicesFlag, Sets("compute.devices")] = AUTO
    quota: Annotated[
        bool,
        typer.Option("--quota", help="Hold workers to their speeds by CPU quotas, not by pacing."),
        Sets("emulation.quota"),
    ] = False

    @property
    def is_described(self) -> bool:
        """Whether the flags say which nodes there are."""
        return any(one is not None for one in (self.nodes, self.speeds, self.cluster, self.workers))

    def resolve(self) -> Cluster:
        """The cluster that the flags describe."""
        if self.cluster is not None:
            self._refuse_beside_file()
            return Cluster.from_toml(self.cluster)
        for flag, count in (("--nodes", self.nodes), ("--workers", self.workers)):
            if count is not None and count < 1:
                raise UsageError(f"{flag} must be at least 1, not {count}")
        return Cluster.of_speeds(self._speeds(), workers=self.workers or 1)

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


def _read_shares(text: str) -> list[float]:
    return parse_numbers(text, flag="--shares")


def _read_workers(text: str) -> list[int]:
    numbers = parse_numbers(text, flag="--only-serve")
    if any(number != int(number) for number in numbers):
        raise UsageError(f"--only-serve {text}: give numbers of workers, such as 2,3")
    return [int(number) for number in numbers]


def _read_faults(path: Path) -> Any:
    return FaultPlan.from_toml(path).faults


def _read_name(name: str) -> str:
    if not name:  # which would mean that none was given
        raise UsageError(f"--name {name!r} cannot be the name of a folder")
    return name


class ExchangeFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say how the batch is cut, and how the workers exchange."""

    shares: Annotated[
        str | None,
        typer.Option(help="Each worker's part of the batch, such as 10,5,2,1."),
        Sets("batch.shares", _read_shares),
    ] = None
    allocation: Annotated[
        str | None,
        typer.Option(
            help="Who gets how much: balanced, equal, random, kqv, kqv-normalised; or pulled part by "
            "part: self-scheduled, 'self-scheduled(GSS)', balanced+stolen."
        ),
        Sets("batch.allocation"),
    ] = None
    data: Annotated[
        str,
        typer.Option(
            help="Whose the samples are: shared (all workers read the same data) or worker (each has "
            "its own, which stay with it).",
        ),
        Sets("batch.data"),
    ] = BatchConfig().data
    sync: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="How groups keep together: full, none, percentage(0.25), local(16), flexible, auto; "
            "or by parameter servers: bsp, asp, ssp(4), backup(1).",
        ),
        Sets("exchange.sync"),
    ] = ExchangeConfig().sync
    lease_scheme: Annotated[
        str,
        typer.Option(
            metavar="SCHEME",
            help="How large the parts of an epoch are that groups at their own pace get: halves, or "
            "a scheme such as GSS, FAC2, TSS, WF2.",
        ),
        Sets("exchange.lease_scheme"),
    ] = ExchangeConfig().lease_scheme
    only_serve: Annotated[
        str | None,
        typer.Option(
            metavar="WORKERS",
            help="Workers that hold parameters and compute nothing, such as 2,3.",
        ),
        Sets("exchange.only_serve", _read_workers),
    ] = None
    transport: Annotated[
        str | None,
        typer.Option(help="What moves the gradients: wire, wire-tcp, gloo, nccl or mpi."),
        Sets("exchange.transport"),
    ] = None
    structure: Annotated[
        str,
        typer.Option(
            metavar="auto|flat|FILE",
            help="Who exchanges with whom: as planned, all in one ring, or a plan's tree.",
        ),
        Sets("exchange.structure"),
    ] = AUTO
    compress: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP=CODEC",
            help="Shorten the gradients that a group of the structure exchanges: top=8-bit.",
        ),
        Sets("exchange.compress"),
    ] = None
    wire_ports: Annotated[
        str | None,
        typer.Option(help="The ports that workers may listen on, such as 20000-20100."),
        Sets("wire.ports", parse_ports),
    ] = None
    wire_connections: Annotated[
        int,
        typer.Option(help="TCP connections per link, where one does not fill it."),
        Sets("wire.connections"),
    ] = 1
    wire_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="The name or address at which others reach these workers, if not the usual one.",
        ),
        Sets("wire.address"),
    ] = None
    wire_calls_out: Annotated[
        bool,
        typer.Option(
            "--wire-calls-out",
            help="Others may not get through to these workers: have them open all connections.",
        ),
        Sets("wire.calls_out"),
    ] = False
    wire_checksum: Annotated[
        bool,
        typer.Option("--wire-checksum", help="Check what travels by TCP with a CRC."),
        Sets("wire.checksum"),
    ] = False


class SurvivalFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say what shall go wrong, and what the end of a worker means."""

    faults: Annotated[
        Path | None,
        typer.Option(help="A TOML file of what shall go wrong, to see it survived."),
        Sets("emulation.faults", _read_faults),
    ] = None
    respawn: Annotated[
        bool,
        typer.Option("--respawn", help="Start workers again that were killed."),
        Sets("survival.respawn"),
    ] = False
    max_respawns: Annotated[
        int,
        typer.Option(min=1, help="How many, over the whole run, with --respawn."),
        Sets("survival.max_respawns"),
    ] = SurvivalConfig().max_respawns
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", help="Go on when a worker ends with an error."),
        Sets("survival.keep_going"),
    ] = False
    allow_chaos: Annotated[
        bool,
        typer.Option("--allow-chaos", help="Let operators kill workers from the dashboard."),
        Sets("survival.allow_chaos"),
    ] = False
    patience: Annotated[PatienceFlag, Sets("survival.patience_s")] = DEFAULT_PATIENCE_S
    non_finite: Annotated[
        str | None,
        typer.Option(
            metavar="keep|evict",
            help="What to do with a worker whose gradient is no number, or far too large.",
        ),
        Sets("survival.non_finite"),
    ] = None
    notice: Annotated[NoticeFlag, Sets("survival.notices")] = None
    notice_deadline: Annotated[NoticeDeadlineFlag, Sets("survival.notice_s")] = DEFAULT_NOTICE_S
    detector: Annotated[DetectorFlag, Sets("manager.detector")] = DEFAULT_DETECTOR
    everybody: Annotated[EverybodyFlag, Sets("manager.everybody")] = False


class HostFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say where to run, on which other machines, and how many of them it takes."""

    on: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help=f"Who starts the workers: {', '.join(ENGINES)}."),
        Sets("engine.name"),
    ] = None
    hosts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A TOML file of machines to run on, reached by ssh."),
        Sets("hosts.file", str),
    ] = None
    min_workers: Annotated[
        int,
        typer.Option(help="On other machines: the fewest workers to begin with."),
        Sets("hosts.min_workers"),
    ] = HostsConfig().min_workers
    max_workers: Annotated[
        int | None,
        typer.Option(help="On other machines: the most workers; other hosts stand by."),
        Sets("hosts.max_workers"),
    ] = None
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="On other machines: how long to try hosts again before the others begin.",
        ),
        Sets("hosts.wait_s"),
    ] = HostsConfig().wait_s
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="On other machines: where the coordinator listens (all interfaces, any port).",
        ),
        Sets("hosts.listen"),
    ] = None
    bring: Annotated[
        bool,
        typer.Option("--bring", help="Send other machines the script and its folder's files."),
        Sets("hosts.bring"),
    ] = False
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="With --bring: files to send that git does not know."),
        Sets("hosts.include"),
    ] = None

    def check(self, cluster: ClusterFlags, *, on: str) -> None:
        """Refuses flags that mean nothing on this machine alone, or contradict the engine."""
        if on == LOCAL:
            for name in sorted(self.given - {"on"}):
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{flag} is about the hosts of a run: name these by --hosts FILE, or an engine "
                    "that has some by --on"
                )
        elif cluster.is_described:
            what = "--hosts" if on == HOSTS else f"--on {on}"
            whose = "the hosts file" if on == HOSTS else "the engine"
            raise UsageError(
                f"{what} and --nodes, --speeds, --workers or --cluster cannot be given together: "
                f"{whose} says which machines there are, and how many workers each has"
            )


class FolderFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say what the run begins with, and where it is kept."""

    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A TOML file with all options; flags go before it."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what all options come to, and start nothing.")
    ] = False
    name: Annotated[
        str | None, typer.Option(help="The run's name, in runs/NAME."), Sets("run", _read_name)
    ] = None
    run_dir: Annotated[Path | None, typer.Option(help="The run folder itself.")] = None
    events: Annotated[
        str,
        typer.Option(
            metavar="auto|full|sampled",
            help="What is written of steps: each, most summed up, or (auto) that after 100,000.",
        ),
        Sets("events.steps"),
    ] = AUTO
    events_file_mib: Annotated[
        int,
        typer.Option(help="A worker's event log goes on in another file after so many MiB."),
        Sets("events.file_mib"),
    ] = EventsConfig().file_mib
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the newest checkpoint of the script."),
        Sets("checkpoint.resume"),
    ] = False
