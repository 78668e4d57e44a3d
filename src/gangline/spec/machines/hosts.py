# SPDX-License-Identifier: Apache-2.0
"""The hosts of a run: machines that are reached by ssh, in a TOML file.

    [defaults]
    python = "~/venv/bin/python"

    [[hosts]]
    name = "desk"

    [[hosts]]
    name = "lab1"
    address = "lab1.example.org"
    user = "anna"
    devices = [0, 1]

What ssh's own configuration says of a name (users, keys, jump hosts) holds.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.spec.cluster import check_names
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

ALL_DEVICES = "all"
MAX_WORKERS_PER_HOST = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"[A-Za-z0-9:\[][A-Za-z0-9:._%\]-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine, and how workers are started there."""

    name: str
    """What it is called here; also what ssh is given, where there is no address."""
    address: str | None = None
    """What ssh connects to: a name that it knows, a host name or an address."""
    user: str | None = None
    port: int | None = None
    """Of its ssh server; None: what ssh's configuration says."""
    python: str = "python3"
    """The python that has gangline there."""
    folder: str | None = None
    """The folder in which workers run there; None: that of the command, or home with `--bring`."""
    devices: tuple[int, ...] | str | None = None
    """The GPUs to use, by number, or `all`; one worker each. None: nothing is said about them."""
    workers: int | None = None
    """How many workers; None: one per device, or one."""
    environment: dict[str, str] = {}
    """Variables that its workers get."""
    reached_at: str | None = None
    """The name or address at which other workers reach it; None: the usual one."""
    calls_out: bool | None = None
    """Whether others cannot get through to it, so that it calls them; None: that is tried."""
    coordinator: str | None = None
    """Where it reaches the coordinator, HOST or HOST:PORT; None: where ssh connects from."""

    def __post_init__(self) -> None:
        for key in (
            "name",
            "address",
            "reached_at",
            "user",
            "port",
            "python",
            "folder",
            "devices",
            "workers",
        ):
            expected = _EXPECTED[key]
            if not _is_fit(key, getattr(self, key)):
                raise UsageError(f"{key} must be {expected}, not {getattr(self, key)!r}")
        for variable in self.environment:
            if not _VARIABLE.fullmatch(variable):
                raise UsageError(
                    f"environment must name variables by letters, digits and _, not {variable!r}"
                )
        if self.coordinator is not None:
            split_place(self.coordinator, name="coordinator")

    @property
    def destination(self) -> str:
        """What ssh is told to connect to."""
        where = self.address or self.name
        return where if self.user is None else f"{self.user}@{where}"

    def num_workers(self, num_devices: int) -> int:
        """How many workers run there, on a machine with so many GPUs."""
        if self.workers is not None:
            return self.workers
        return max(1, len(self.chosen_devices(num_devices)))

    def chosen_devices(self, num_devices: int) -> tuple[int, ...]:
        """The GPUs that its workers share, on a machine with so many."""
        if isinstance(self.devices, str):
            return tuple(range(num_devices))
        return self.devices or ()


_EXPECTED = {
    "name": "letters, digits, dots and dashes, 63 at most",
    "address": "a host name or an address",
    "reached_at": "a host name or an address",
    "user": "the name of a user",
    "port": "a port from 1 to 65535",
    "python": "the path of a python, such as ~/venv/bin/python",
    "folder": "the path of a folder",
    "devices": f"a list of different numbers of GPUs, or {ALL_DEVICES!r}",
    "workers": f"1 to {MAX_WORKERS_PER_HOST}",
}


def _is_fit(key: str, value: Any) -> bool:
    """Whether a value can be meant; what begins with a dash would be an option of ssh."""
    if value is None:
        return True
    if key == "name":
        return _NAME.fullmatch(value) is not None
    if key in ("address", "reached_at"):
        return _ADDRESS.fullmatch(value) is not None
    if key == "port":
        return 0 < int(value) < 1 << 16
    if key == "workers":
        return 1 <= int(value) <= MAX_WORKERS_PER_HOST
    if key == "devices" and not isinstance(value, str):
        return bool(value) and min(value) >= 0 and len(set(value)) == len(value)
    if key == "devices":
        return bool(value == ALL_DEVICES)
    return bool(value) and str(value).isprintable() and not str(value).startswith("-")


def split_place(text: str, *, name: str) -> tuple[str, int]:
    """The host and the port of `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`; 0 where there is no port."""
    bare = text.startswith("[") or text.count(":") < 2
    host, _, port = text.rpartition(":") if bare and not text.endswith("]") else (text, "", "0")
    if not host:
        host, port = text, "0"
    host = host.removeprefix("[").removesuffix("]")
    if not _ADDRESS.fullmatch(host) or not port.isdecimal() or int(port) >= 1 << 16:
        raise UsageError(f"{name} must be HOST or HOST:PORT, not {text!r}")
    return host, int(port)


def read_hosts(path: Path) -> tuple[Host, ...]:
    """The hosts in a file; an error names the entry, the key, and what was expected."""
    try:
        document = msgspec.toml.decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read the hosts file {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the hosts file {path} is not TOML: {error}") from error
    try:
        return _hosts_of(document)
    except UsageError as error:
        raise UsageError(f"the hosts file {path} is not usable: {error}") from error


def _hosts_of(document: dict[str, Any]) -> tuple[Host, ...]:
    _check_keys(document, ("hosts", "defaults"), where="the file")
    defaults = document.get("defaults", {})
    entries = document.get("hosts", [])
    if not isinstance(defaults, dict):
        raise UsageError("[defaults] must be a table")
    keys = [key for key in Host.__struct_fields__ if key != "name"]
    _check_keys(defaults, keys, where="[defaults]")
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise UsageError("hosts must be [[hosts]] tables")
    if not entries:
        raise UsageError("it names no hosts; write a [[hosts]] table for each, with its name")
    hosts = tuple(_host_of(defaults, entry, number) for number, entry in enumerate(entries, 1))
    check_names(host.name for host in hosts)
    return hosts


def _host_of(defaults: dict[str, Any], entry: dict[str, Any], number: int) -> Host:
    where = f"host {entry['name']!r}" if "name" in entry else f"host number {number}"
    _check_keys(entry, Host.__struct_fields__, where=where)
    if "name" not in entry:
        raise UsageError(f"{where} has no name")
    variables = [one.get("environment", {}) for one in (defaults, entry)]
    whole = {**defaults, **entry}
    if all(isinstance(one, dict) for one in variables):
        whole["environment"] = variables[0] | variables[1]
    try:
        return msgspec.convert(whole, type=Host)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, UsageError):
            raise UsageError(f"{where}: {error.__cause__}") from error
        what, _, place = str(error).rpartition(" - at ")
        key = re.split(r"[.\[]", place.strip("`").removeprefix("$."))[0]
        raise UsageError(f"{where}: {key}: {what}") from error


def _check_keys(table: dict[str, Any], known: Any, *, where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"{where} has a key {key!r}, which is not known: {hint}")
