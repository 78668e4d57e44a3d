# SPDX-License-Identifier: Apache-2.0
"""What was asked of a run: one value that launcher, workers and coordinator read.

A run configuration is TOML, or JSON as a run folder's `config.json`:

    [[cluster.nodes]]
    name = "desk"

    [batch]
    allocation = "equal"

    [survival]
    respawn = true

An option is one field here. What cannot be meant is refused when a part is made; what does not fit
together, by `RunConfig.check`. Errors name a field as `part.field`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.spec.cluster import Cluster, Node
from gangline.spec.engines.engine import ENGINES, HOSTS, LOCAL, EngineConfig
from gangline.spec.engines.mpi import MpiConfig
from gangline.spec.engines.ray import RayConfig
from gangline.spec.engines.slurm import SlurmConfig
from gangline.spec.engines.spark import SparkConfig
from gangline.spec.errors import UsageError
from gangline.spec.exchange.compression import Compression
from gangline.spec.exchange.structure import Structure
from gangline.spec.faults import Fault, FaultPlan
from gangline.spec.machines.devices import AUTO as DEVICES_AUTO
from gangline.spec.machines.devices import check_devices
from gangline.spec.machines.hosts import split_place
from gangline.spec.machines.link import is_host
from gangline.spec.machines.notice import DEFAULT_NOTICE_S, check_notice, check_notice_s
from gangline.spec.part import Part
from gangline.spec.sync import Sync, parse_sync
from gangline.spec.wire import WireSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

TRANSPORTS = ("wire", "wire-tcp", "gloo", "nccl", "mpi")
"""What can move gradients: our own (sharing memory within a host, or TCP always), torch's on CPUs,
torch's between GPUs, and an MPI library's."""
NON_FINITE = ("keep", "evict")
"""What happens to a worker whose gradient is wrong: nothing but being named, or it is put out."""
SHARED, OWN = "shared", "worker"
DATA = (SHARED, OWN)
"""Whose the samples are: every worker can read all of them, or each has its own."""
AUTO, FLAT = "auto", "flat"
"""Structures that need no plan: planned while the job runs, or all in one ring."""
EVENTS = (AUTO, "full", "sampled")
"""How steps are written down."""
LEAST_PATIENCE_S, MOST_PATIENCE_S = 2.0, 3600.0
DEFAULT_MAX_AWAY_S = 60.0
ANY_ADDRESS, ANY_IPV6 = "0.0.0.0", "::"
MAX_LATE = 100
"""So many workers may be started on hosts that come late, or come back, over a run."""


def check_transport(value: str | None, *, name: str) -> None:
    """Refuses what cannot move gradients; `name` is what the user wrote it behind."""
    if value is not None and value not in TRANSPORTS:
        raise UsageError(f"{name} {value!r} is not known; choose one of: {', '.join(TRANSPORTS)}")


def check_non_finite(value: str, *, name: str) -> None:
    """Refuses what is no answer to a wrong gradient; `name` is what the user wrote it behind."""
    if value not in NON_FINITE:
        raise UsageError(f"{name} must be one of {', '.join(NON_FINITE)}, not {value!r}")


def check_data(value: str, *, name: str) -> None:
    """Refuses what does not say whose the data is; `name` is what the user wrote it behind."""
    if value not in DATA:
        raise UsageError(f"{name} must be one of {', '.join(DATA)}, not {value!r}")


class BatchConfig(Part, frozen=True, kw_only=True):
    """Who gets how much of the global batch."""

    shares: tuple[float, ...] | None = None
    """Each worker's fixed part, in any unit; None leaves it to the allocation."""
    allocation: str | None = None
    """The policy that cuts the batch; None leaves it to the script."""
    data: str = SHARED
    """`shared`: every worker can read all samples; `worker`: each has its own, which stay with it."""

    def __post_init__(self) -> None:
        check_data(self.data, name="batch.data")
        shares = self.shares
        if shares is not None and not all(map(math.isfinite, shares)):
            raise UsageError(f"batch.shares {_listed(shares)}: every share is a finite number")
        if shares is not None and (min(shares, default=0) < 0 or sum(shares) == 0):
            raise UsageError(
                f"batch.shares {_listed(shares)}: no share may be below 0, and one must be above it"
            )


class ExchangeConfig(Part, frozen=True, kw_only=True):
    """Who exchanges with whom, by what, and how tightly they are held together."""

    transport: str | None = None
    """What moves the gradients, one of `TRANSPORTS`; None leaves it to the script."""
    structure: str | Structure = AUTO
    """`auto`: planned while the job runs; `flat`: all in one ring; a file with a plan; or a tree."""
    compress: tuple[str, ...] = ()
    """What shortens the gradients of groups of that structure, as `GROUP=CODEC`."""
    sync: str = "full"
    """How tightly groups are held together, where the script does not say."""
    lease_scheme: str = "halves"
    """How large the parts of an epoch are that groups at their own pace get: a scheme's name."""
    only_serve: tuple[int, ...] = ()
    """Workers, by number, that hold parameters and compute nothing; with parameter servers."""

    def __post_init__(self) -> None:
        check_transport(self.transport, name="exchange.transport")
        parse_sync(self.sync)
        if any(worker < 0 for worker in self.only_serve):
            raise UsageError(
                f"exchange.only_serve {_listed(self.only_serve)} names workers, from 0 on"
            )
        for one in self.compress:
            group, equals, codec = one.partition("=")
            if not equals or not group.strip():
                raise UsageError(
                    f"exchange.compress {one} names no group and compression; write for example "
                    "top=powersgd(4)"
                )
            Compression.parse(codec)

    @property
    def is_planned(self) -> bool:
        """Whether the structure is found while the job runs."""
        return self.structure == AUTO

    @property
    def tree(self) -> Structure | None:
        """The structure that the workers begin with; None: all in one ring."""
        return self.structure if isinstance(self.structure, Structure) else None

    @property
    def how_tight(self) -> Sync:
        """What `sync` means."""
        return parse_sync(self.sync)


class TlsConfig(Part, frozen=True, kw_only=True):
    """Whether everything is encrypted. Certificates of your own are named in `wire`."""

    enabled: bool = False
    """With certificates that are made for the run, where `wire` names none."""


class ListenConfig(Part, frozen=True, kw_only=True):
    """Where the coordinator is found by other machines."""

    host: str = "127.0.0.1"
    """The interface that it listens on."""
    port: int = 0
    """0 takes a free one."""
    names: tuple[str, ...] = ()
    """Names and addresses by which others reach this machine, beside those that it knows itself."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise UsageError(f"listen.port is 0 to 65535, not {self.port}")
        for name in self.names:
            if not is_host(name):
                raise UsageError(f"listen.names {name!r} is no name or address of a machine")


class ChecksConfig(Part, frozen=True, kw_only=True):
    """What workers compare, beside their models and loaders, before they train together."""

    samples: int = 0
    """How many samples of the data set; 0: none."""
    allow_differences: bool = False
    """Whether this worker's torch may be another version than the others'."""

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise UsageError(f"checks.samples is 0 or more, not {self.samples}")


class CheckpointConfig(Part, frozen=True, kw_only=True):
    """What is done with the checkpoints of the script."""

    resume: bool = False
    """Go on from the newest one, where the script does not say."""


class SurvivalConfig(Part, frozen=True, kw_only=True):
    """What the end, the silence or a wrong gradient of a worker means."""

    respawn: bool = False
    """Start workers again that were killed."""
    max_respawns: int = 3
    """How many over the whole run, with `respawn`."""
    keep_going: bool = False
    """Go on when a worker ends with an error."""
    patience_s: float = LEAST_PATIENCE_S
    """How long others wait for a worker that is silent; 30 times that if it computes."""
    non_finite: str | None = None
    """What happens to a worker whose gradient is wrong, one of `NON_FINITE`; None: the script says."""
    max_away_s: float = DEFAULT_MAX_AWAY_S
    """How long the coordinator may be away when a worker cannot go on without it."""
    notices: tuple[str, ...] = ()
    """What says that this machine is about to end: `sigterm`, `file:PATH` or `command:COMMAND`."""
    notice_s: float = DEFAULT_NOTICE_S
    """How long after that the machine ends: its workers have left by then."""
    allow_chaos: bool = False
    """Let an operator kill workers of this machine from the dashboard, to see the job survive it."""

    def __post_init__(self) -> None:
        if self.max_respawns < 1:
            raise UsageError(f"survival.max_respawns must be at least 1, not {self.max_respawns}")
        if not LEAST_PATIENCE_S <= self.patience_s <= MOST_PATIENCE_S:
            raise UsageError(
                f"survival.patience_s must be {LEAST_PATIENCE_S:g} to {MOST_PATIENCE_S:g} seconds, "
                f"not {self.patience_s}"
            )
        if self.non_finite is not None:
            check_non_finite(self.non_finite, name="survival.non_finite")
        if not 1 <= self.max_away_s < math.inf:
            raise UsageError(
                f"survival.max_away_s must be finite and 1 or more, not {self.max_away_s}"
            )
        for notice in self.notices:
            check_notice(notice, name="survival.notices")
        check_notice_s(self.notice_s, name="survival.notice_s")

    @property
    def num_respawns(self) -> int:
        """How many workers may be started again."""
        return self.max_respawns if self.respawn else 0


class ManagerConfig(Part, frozen=True, kw_only=True):
    """Who counts as slow, and what follows from it."""

    detector: str = "robust"
    """One of ours by its name, or a class of your own, as `module:Class`."""
    everybody: bool = False
    """Train with all workers, also where fewer of them would be faster."""


class EventsConfig(Part, frozen=True, kw_only=True):
    """How much workers write down."""

    steps: str = AUTO
    """`full`: a line for every step; `sampled`: most are summed up; `auto`: full for 100,000 steps."""
    file_mib: int = 256
    """A worker's log that has grown by so many MiB goes on in another file."""

    def __post_init__(self) -> None:
        if self.steps not in EVENTS:
            raise UsageError(f"events.steps must be one of {', '.join(EVENTS)}, not {self.steps!r}")
        if not 1 <= self.file_mib <= 1 << 20:
            raise UsageError(
                f"events.file_mib must be from 1 to {1 << 20} MiB, not {self.file_mib}"
            )


class ComputeConfig(Part, frozen=True, kw_only=True):
    """What the workers of this machine compute on."""

    devices: str = DEVICES_AUTO
    """`auto`: one worker per GPU, where nothing is emulated; `cpu`; or GPUs, such as `0,1`."""

    def __post_init__(self) -> None:
        check_devices(self.devices, name="compute.devices")


class EmulationConfig(Part, frozen=True, kw_only=True):
    """What this machine pretends."""

    quota: bool = False
    """Hold workers to their speeds by CPU quotas, not by pacing."""
    faults: tuple[Fault, ...] = ()
    """What shall go wrong with the workers."""


class HostsConfig(Part, frozen=True, kw_only=True):
    """Other machines that train, whichever engine brings them, and how many of them it takes."""

    file: str | None = None
    """The TOML file that names those that are reached by ssh; None: there are none."""
    min_workers: int = 1
    """With fewer workers than this, nothing is begun."""
    max_workers: int | None = None
    """No more are started; other hosts stand by. None: all that there are."""
    wait_s: float = 0.0
    """How long hosts that cannot be reached are tried again before the others begin."""
    listen: str | None = None
    """Where the coordinator listens for them, HOST or HOST:PORT; None: at all interfaces."""
    bring: bool = False
    """Send them the script, with the files of its folder that git knows."""
    include: tuple[str, ...] = ()
    """What else is sent: files, folders and patterns, relative to the script's folder."""

    def __post_init__(self) -> None:
        if self.min_workers < 1:
            raise UsageError(f"hosts.min_workers must be at least 1, not {self.min_workers}")
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise UsageError(
                f"hosts.max_workers {self.max_workers} is below hosts.min_workers {self.min_workers}"
            )
        if not 0 <= self.wait_s < math.inf:
            raise UsageError(f"hosts.wait_s must be finite and 0 or more, not {self.wait_s}")
        if self.include and not self.bring:
            raise UsageError(
                "hosts.include says what is sent beside the script, and hosts.bring is not given"
            )
        if self.listen is not None:
            split_place(self.listen, name="hosts.listen")

    @property
    def listen_at(self) -> tuple[str, int]:
        """The interface and the port of the coordinator; a port of 0 is any."""
        return split_place(self.listen or ANY_ADDRESS, name="hosts.listen")


class RunConfig(Part, frozen=True, kw_only=True):
    """All options of a run."""

    run: str = ""
    """The run's name; empty: made from the script's name and the time."""
    cluster: Cluster = Cluster(nodes=(Node(name="n0"),))
    batch: BatchConfig = BatchConfig()
    exchange: ExchangeConfig = ExchangeConfig()
    wire: WireSettings = WireSettings()
    tls: TlsConfig = TlsConfig()
    listen: ListenConfig = ListenConfig()
    checks: ChecksConfig = ChecksConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    survival: SurvivalConfig = SurvivalConfig()
    manager: ManagerConfig = ManagerConfig()
    emulation: EmulationConfig = EmulationConfig()
    compute: ComputeConfig = ComputeConfig()
    events: EventsConfig = EventsConfig()
    hosts: HostsConfig = HostsConfig()
    engine: EngineConfig = EngineConfig()
    mpi: MpiConfig = MpiConfig()
    slurm: SlurmConfig = SlurmConfig()
    ray: RayConfig = RayConfig()
    spark: SparkConfig = SparkConfig()

    @property
    def on(self) -> str:
        """The name of the engine that starts the workers."""
        if self.engine.name is not None:
            return self.engine.name
        return LOCAL if self.hosts.file is None else HOSTS

    @property
    def is_elsewhere(self) -> bool:
        """Whether the workers run where an engine has room for them, and not beside the launcher."""
        return self.on != LOCAL

    @property
    def listen_at(self) -> tuple[str, int]:
        """The interface and the port of the coordinator; a port of 0 is any."""
        if self.is_elsewhere:
            return self.hosts.listen_at
        return self.listen.host, self.listen.port

    @property
    def num_workers(self) -> int:
        """How many workers begin the run."""
        return len(self.cluster.worker_nodes)

    @property
    def num_own(self) -> int:
        """The numbers below this one are given by the launcher, to whom it starts."""
        late = MAX_LATE if self.is_elsewhere else 0
        return self.num_workers + self.survival.num_respawns + late

    @property
    def has_tls(self) -> bool:
        """Whether everything is encrypted, as it is wherever it leaves this machine."""
        return self.tls.enabled or self.wire.has_tls or self.is_elsewhere

    @property
    def for_workers(self) -> RunConfig:
        """What of it a worker is told: not what the other nodes are, nor what goes wrong there."""
        plain = RunConfig()
        return msgspec.structs.replace(
            self,
            cluster=plain.cluster,
            emulation=plain.emulation,
            listen=plain.listen,
            hosts=plain.hosts,
            engine=plain.engine,
            **{name: getattr(plain, name) for name in _parts_of_engines()},
        )

    def check(self) -> None:
        """Refuses parts that do not fit together."""
        self._check_workers()
        self._check_engine()
        transport, sync = self.exchange.transport, self.exchange.sync
        if parse_sync(sync).is_relaxed and not (transport or "wire").startswith("wire"):
            raise UsageError(
                f"exchange.sync {sync} and exchange.transport {transport} cannot be given together: "
                "groups that train at their own pace need the transport wire or wire-tcp"
            )
        if (
            self.has_tls
            and not self._is_sent_by_engine
            and not (transport or "wire").startswith("wire")
        ):
            raise UsageError(
                f"exchange.transport {transport} does not encrypt what it sends, and TLS was asked "
                "for: use wire or wire-tcp"
            )
        if self.has_tls and self.cluster.has_network:
            raise UsageError(
                "a cluster file with links cannot be run with TLS: certificates are made for this "
                "machine's addresses, and emulated nodes have others; leave out TLS, or the links"
            )
        if self.exchange.is_planned and self.exchange.compress:
            raise UsageError(
                f"exchange.compress {self.exchange.compress[0]} names a group of a structure that is "
                "planned while the job runs; give exchange.structure, too: flat, or a file that "
                "`gangline plan` wrote"
            )

    @property
    def _is_sent_by_engine(self) -> bool:
        """Whether gradients go over the network of an MPI job, which nobody asked to encrypt."""
        is_asked = self.tls.enabled or self.wire.has_tls
        return self.exchange.transport == "mpi" and self.is_elsewhere and not is_asked

    def _check_engine(self) -> None:
        plain = RunConfig()
        for name in _parts_of_engines():
            if name != self.on and getattr(self, name) != getattr(plain, name):
                raise UsageError(
                    f"the options of {name} mean nothing to the engine {self.on}: choose it by "
                    f"engine.name {name}, or leave them out"
                )
        if (self.on == HOSTS) != (self.hosts.file is not None):
            raise UsageError(
                "the engine hosts and hosts.file belong together: the file names the machines that "
                "are reached by ssh"
            )
        if not self.is_elsewhere:
            return
        beside = {
            "emulation.quota": self.emulation.quota,
            "emulation.faults": bool(self.emulation.faults),
            "wire.certificate": self.wire.has_tls,
        }
        what = "hosts.file" if self.on == HOSTS else f"engine.name {self.on}"
        for name in (name for name, is_given in beside.items() if is_given):
            raise UsageError(
                f"{what} and {name} cannot be given together: hosts are as fast as they are, and "
                "get certificates that are made for the run"
            )

    def _check_workers(self) -> None:
        shares = self.batch.shares
        is_known = not self.is_elsewhere  # how many hosts come is seen when they have come
        if is_known and shares is not None and len(shares) != self.num_workers:
            raise UsageError(
                f"batch.shares {_listed(shares)} has {len(shares)} shares for {self.num_workers} "
                "workers; give one per worker"
            )
        service = parse_sync(self.exchange.sync).service
        if is_known and service is not None:  # groups are at most as many as workers
            service.check(teams=self.num_workers, workers=self.num_workers)
        FaultPlan(faults=self.emulation.faults).check(workers=self.num_workers)
        only_serve = set(self.exchange.only_serve)
        if is_known and only_serve and max(only_serve) >= self.num_workers:
            raise UsageError(
                f"exchange.only_serve {_listed(self.exchange.only_serve)}: the {self.num_workers} "
                f"workers have the numbers 0 to {self.num_workers - 1}"
            )
        if is_known and len(only_serve) == self.num_workers:
            raise UsageError("exchange.only_serve names all workers: somebody must train")


def _parts_of_engines() -> tuple[str, ...]:
    """The engines that have options of their own, each in a part with its name."""
    parts = RunConfig.__struct_fields__
    return tuple(name for name in ENGINES if name in parts and name != HOSTS)


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Sets what a document says at `part.field`."""
    *parts, field = path.split(".")
    for part in parts:
        document = document.setdefault(part, {})
    document[field] = value


def _listed(numbers: Iterable[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)
