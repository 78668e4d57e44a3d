# SPDX-License-Identifier: Apache-2.0
"""What a launcher tells each worker: one JSON document in one environment variable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.exchange.structure import Structure
from gangline.spec.faults import Fault
from gangline.spec.sync import IN_STEP, Sync
from gangline.spec.wire import WireSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

LAUNCH_VARIABLE = "GANGLINE_LAUNCH"
TRANSPORTS = ("wire", "wire-tcp", "gloo", "nccl")
"""What can move gradients: our own (sharing memory within a host, or TCP always), torch's on CPUs,
and torch's between GPUs."""

DEFAULT_MAX_AWAY_S = 60.0

NON_FINITE = ("keep", "evict")
"""What happens to a worker whose gradient is wrong: nothing but being named, or it is put out."""


class Launch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker's part in a job that `gangline run` or `gangline join` started."""

    run: str
    """The name of the run."""
    run_dir: str
    """Where the worker writes its event log."""
    worker: int
    """This worker's id; -1 lets the coordinator give it one."""
    workers: int
    """How many workers found the job; 0 where whoever starts this one does not know."""
    token_file: str
    """The file that holds the run's token."""
    coordinator: str | None = None
    """The coordinator's address, `ws://HOST:PORT`; None where it announces itself in the run folder."""
    announced_in: str | None = None
    """The folder in which the coordinator announces itself, where that is not the worker's own."""
    max_away_s: float = DEFAULT_MAX_AWAY_S
    """How long the coordinator may be away when the worker cannot go on without it."""
    speed: float = 1.0
    """Below 1, the worker paces itself to this fraction of its own speed."""
    shares: tuple[float, ...] | None = None
    """Each worker's part of the global batch, in any unit; None leaves it to the allocation."""
    transport: str | None = None
    """What moves the gradients; None lets the runtime choose."""
    wire: WireSettings | None = None
    """How our own transport works; None leaves it to the script."""
    allocation: str | None = None
    """The policy that cuts the global batch; None leaves it to the script."""
    structure: Structure | None = None
    """How the workers exchange, as a tree of groups; None: all in one ring."""
    resume: bool = False
    """Whether to go on from the newest checkpoint, where the script does not say."""
    sync: Sync = IN_STEP
    """How tightly groups of workers are held together, where the script does not say."""
    non_finite: str | None = None
    """What happens to a worker whose gradient is wrong; None leaves it to the script."""
    faults: tuple[Fault, ...] = ()
    """What shall go wrong with this worker."""
    replaces: int = -1
    """The worker in whose place it is started; -1: nobody's."""
    probe_steps: int = 0
    """Above 0, the worker is a job of one that is measured: it ends after so many steps."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Launch | None:
        """The launch in `environment`, or None where nobody launched us."""
        text = environment.get(LAUNCH_VARIABLE)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text.encode(), type=cls)
        except msgspec.DecodeError as error:
            raise UsageError(
                f"the environment variable {LAUNCH_VARIABLE} is not what `gangline run` writes "
                f"({error}); unset it, or start the script with `gangline run`"
            ) from error

    def to_environment(self) -> dict[str, str]:
        """The variable that `from_environment` reads."""
        return {LAUNCH_VARIABLE: msgspec.json.encode(self).decode()}


def check_non_finite(value: str, *, name: str) -> None:
    """Refuses what is no answer to a wrong gradient; `name` is what the user wrote it behind."""
    if value not in NON_FINITE:
        raise UsageError(f"{name} must be one of {', '.join(NON_FINITE)}, not {value!r}")
