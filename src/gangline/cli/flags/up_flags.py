# SPDX-License-Identifier: Apache-2.0
"""The flags of `gangline up`, in groups."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.flags.detectors import DEFAULT_DETECTOR, DetectorFlag, EverybodyFlag
from gangline.cli.flags.devices import DevicesFlag
from gangline.cli.flags.groups import FlagGroup
from gangline.cli.flags.notices import NoticeDeadlineFlag, NoticeFlag
from gangline.cli.flags.patience import DEFAULT_PATIENCE_S, PatienceFlag
from gangline.coordinator.detectors import load_detector
from gangline.files.invitations import DEFAULT_LASTS_S, DEFAULT_USES, Invitation, Invitations
from gangline.launch.devices import find_gpus, placed
from gangline.launch.joining.code import Collected, offer_code
from gangline.launch.joining.inviting import listening
from gangline.launch.program import Program
from gangline.spec.cluster import Cluster
from gangline.spec.config import (
    ComputeConfig,
    ListenConfig,
    ManagerConfig,
    RunConfig,
    SurvivalConfig,
)
from gangline.spec.errors import UsageError
from gangline.spec.machines.code import DEFAULT_MAX_BYTES, MAX_SAMPLES
from gangline.spec.machines.devices import AUTO as DEVICES_AUTO
from gangline.spec.machines.devices import check_devices
from gangline.spec.machines.notice import DEFAULT_NOTICE_S, check_notice, check_notice_s
from gangline.spec.wire import parse_ports

MaxCodeFlag = Annotated[
    int, typer.Option(min=1, metavar="MIB", help="How much code is brought at most, in MiB.")
]
DEFAULT_MAX_CODE = DEFAULT_MAX_BYTES >> 20
DEFAULT_SAMPLES = 4


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
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done", help="Of a coordinator alone: end when the job is trained to its end."
        ),
    ] = False
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


class WorkFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags of the workers that are started here."""

    devices: DevicesFlag = DEVICES_AUTO
    notice: NoticeFlag = None
    notice_deadline: NoticeDeadlineFlag = DEFAULT_NOTICE_S
    wire_ports: Annotated[
        str | None,
        typer.Option(help="The ports that workers here may listen on, such as 20000-20100."),
    ] = None

    def put_to(self, config: RunConfig, *, is_described: bool) -> RunConfig:
        """The same with these workers; as many as there are GPUs, where nobody said how many."""
        for notice in self.notice or ():
            check_notice(notice, name="--notice")
        check_notice_s(self.notice_deadline, name="--notice-deadline")
        check_devices(self.devices, name="--devices")
        ports = None if self.wire_ports is None else parse_ports(self.wire_ports)
        asked = msgspec.structs.replace(
            config,
            compute=ComputeConfig(devices=self.devices),
            wire=msgspec.structs.replace(config.wire, ports=ports),
            survival=msgspec.structs.replace(
                config.survival, notices=tuple(self.notice or ()), notice_s=self.notice_deadline
            ),
        )
        return placed(asked, is_described=is_described, gpus=find_gpus())


class AskedFlags(FlagGroup, frozen=True, kw_only=True):
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


class CodeFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say which code others are offered."""

    include: Annotated[
        list[Path] | None,
        typer.Option(help="A file or folder below the script's, brought to others, too."),
    ] = None
    max_code: MaxCodeFlag = DEFAULT_MAX_CODE
    no_code: Annotated[
        bool, typer.Option("--no-code", help="Offer no code: the others have it already.")
    ] = False

    compare_samples: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_SAMPLES,
            help="How many samples of the data set all workers compare; 0: none.",
        ),
    ] = DEFAULT_SAMPLES

    def offer(self, program: Program, run_dir: Path) -> Collected:
        """Keeps for the others what they are offered, or compare themselves with."""
        if self.no_code and self.include:
            raise UsageError("--include and --no-code cannot be given together")
        return offer_code(
            program,
            run_dir,
            include=self.include or (),
            max_bytes=self.max_code << 20,
            compare_samples=self.compare_samples,
            is_offered=not self.no_code,
        )
