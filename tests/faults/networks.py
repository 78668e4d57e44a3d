# SPDX-License-Identifier: Apache-2.0
"""A network of its own for a job's processes, in which any two of them can be cut from each other.

Every worker has a network namespace with one interface; all are plugged into one switch, in the
coordinator's namespace. Nothing of this machine's own network is touched.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

_CLONE_NEWNET = 0x40000000
_SUBNET = "198.18.0"
COORDINATOR = f"{_SUBNET}.1"


def enter_namespace(name: str) -> None:
    """From now on this thread, and what it starts, is in a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
    finally:
        os.close(descriptor)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    """The namespaces of a job; as a context manager it removes them."""

    def __init__(self, workers: int) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            pytest.skip("network namespaces need root, and the command `ip`")
        self.coordinator = f"gangline-{os.getpid()}-c"
        self.workers = [f"gangline-{os.getpid()}-{worker}" for worker in range(workers)]

    def __enter__(self) -> Network:
        try:
            _ip("netns", "add", self.coordinator)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be made here: {error.stderr.strip()}")
        try:
            _ip("-n", self.coordinator, "link", "add", "name", "switch", "type", "bridge")
            _ip("-n", self.coordinator, "addr", "add", f"{COORDINATOR}/24", "dev", "switch")
            _ip("-n", self.coordinator, "link", "set", "switch", "up")
            for worker in range(len(self.workers)):
                self._plug_in(worker)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for name in [*self.workers, self.coordinator]:
            if Path(f"/run/netns/{name}").exists():
                _ip("netns", "delete", name)

    def _plug_in(self, worker: int) -> None:
        name, plug = self.workers[worker], f"plug{worker}"
        _ip("netns", "add", name)
        ends = ["name", "eth0", "netns", name, "type", "veth", "peer", "name", plug]
        _ip("link", "add", *ends, "netns", self.coordinator)
        _ip("-n", self.coordinator, "link", "set", plug, "master", "switch", "up")
        _ip("-n", name, "addr", "add", f"{_address(worker)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def cut(self, worker: int, *, peers: bool = False, coordinator: bool = False) -> None:
        """From now on nothing goes from a worker to these: so neither does an answer."""
        for target in self._targets(worker, peers=peers, coordinator=coordinator):
            _ip("-n", self.workers[worker], "route", "add", "blackhole", f"{target}/32")

    def drop_between(self, one: int, other: int) -> None:
        """From now on what the one sends to the other gets lost on the way, and so do answers."""
        for here, there in ((one, other), (other, one)):
            mac = ["lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"]
            _ip("-n", self.workers[here], "neigh", "replace", _address(there), *mac)

    def heal(self, worker: int, *, peers: bool = False, coordinator: bool = False) -> None:
        """Takes the cut back."""
        for target in self._targets(worker, peers=peers, coordinator=coordinator):
            _ip("-n", self.workers[worker], "route", "del", "blackhole", f"{target}/32")

    def _targets(self, worker: int, *, peers: bool, coordinator: bool) -> Iterable[str]:
        others = [other for other in range(len(self.workers)) if other != worker]
        return [_address(other) for other in others if peers] + [COORDINATOR] * coordinator


def _address(worker: int) -> str:
    return f"{_SUBNET}.{10 + worker}"
