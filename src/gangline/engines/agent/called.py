# SPDX-License-Identifier: Apache-2.0
"""The agent as an engine starts it: it is given an invitation, and calls the launcher.

    python -m gangline.engines.agent --call          (the invitation comes on standard input)
    python -m gangline.engines.agent --call FILE     (or is in a file)

An engine that starts one agent per rank needs to say nothing more; others name the place by `--name`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.agent.agent import Agent, describe
from gangline.protocol.agents import FromLauncher
from gangline.protocol.calling import Call, Invitation, SocketChannel, dial
from gangline.spec.errors import GanglineError, LaunchError
from gangline.spec.machines.devices import VISIBLE
from gangline.worker.started.ranks import Ranks, find_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

STDIN = "-"
_PMI = "PMI_FD"
_NODE = "SLURMD_NODENAME"
"""What Slurm calls this node, whose host name may be another one."""
_DIAL_S = 30.0
_MAX_BYTES = 1 << 20
_MAX_NAME = 60


def call(source: str, *, name: str | None, insists: bool = False) -> None:
    """Calls whoever invites, and does what it says until it is gone.

    One that `insists` fails where the launcher is gone before it has said that all is over: an engine
    that starts again who failed shall do so.
    """
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        ranks = find_ranks(os.environ)
        invitation = Invitation.read(_read(source))
        connection, seen_from = dial(invitation, deadline_s=_DIAL_S)
    except GanglineError as error:
        sys.exit(f"gangline: {error}")
    here = msgspec.structs.replace(describe(), seen_from=seen_from, seen_at=None)
    os.environ.update(device_of(ranks, os.environ, num_devices=here.devices))
    channel: SocketChannel[FromLauncher] = SocketChannel(connection, FromLauncher)
    rank, slots = (0, 0) if ranks is None else (ranks.rank, ranks.size)
    place = name or place_of(ranks, os.environ.get(_NODE) or socket.gethostname())
    channel.send(Call(secret=invitation.secret, name=place, rank=rank, slots=slots))
    channel.send(here)
    beside = 1 if ranks is None else ranks.local_size
    agent = Agent(channel, beside=beside, pass_fds=inherited(os.environ))
    # Engines say so when a place is to be given back: the workers leave their job first.
    signal.signal(signal.SIGTERM, lambda number, frame: agent.depart())
    with contextlib.closing(connection):
        is_dismissed = agent.run(connection.fileno())
    if insists and not is_dismissed:
        sys.exit("gangline: the launcher is gone, or has hung up")


def place_of(ranks: Ranks | None, hostname: str) -> str:
    """What this agent's place is called: its machine, and its rank."""
    machine = re.sub(r"[^A-Za-z0-9-]", "-", hostname.partition(".")[0]).strip("-") or "node"
    return f"{machine[: _MAX_NAME - 8]}-{0 if ranks is None else ranks.rank}"


def device_of(
    ranks: Ranks | None, environment: Mapping[str, str], *, num_devices: int
) -> dict[str, str]:
    """Which GPU this place has, where the engine has not said it, and there are several places."""
    if ranks is None or not num_devices or VISIBLE in environment or ranks.local_size < 2:
        return {}
    return {VISIBLE: str(ranks.local_rank % num_devices)}


def inherited(environment: Mapping[str, str]) -> tuple[int, ...]:
    """The line to a launcher of the MPICH family, by which a worker becomes a rank of its world."""
    named = environment.get(_PMI, "")
    return (int(named),) if named.isdecimal() else ()


def _read(source: str) -> bytes:
    if source == STDIN:
        return sys.stdin.buffer.readline(_MAX_BYTES)
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise LaunchError(f"cannot read the invitation {source}: {error.strerror}") from error
