# SPDX-License-Identifier: Apache-2.0
"""How long an all-reduce takes: wire by shared memory and by TCP, gloo, MPI; 4 KB to 100 MB.

    python benchmarks/allreduce.py --workers 2 4 --repeats 8
    python benchmarks/allreduce.py --mpi-venv PATH     # an environment with numpy, mpi4py, MPI

Each contender is a team of processes that sleeps while the others are measured; they alternate
within one run. Beside the times stand what a memory copy of the tensor takes, and what it takes to
pass the bytes that a ring sends per worker through one loopback connection.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

try:
    from gangline.files.certificates import make_tls_files
except ImportError:
    make_tls_files = None
from harness import Comparison, compare, save
from teams import Team, TeamError, serve

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20]
BASELINE = "gloo"
WIRE = {
    "wire (shared memory)": "shared",
    "wire (TCP)": "tcp",
    "wire (TCP, TLS)": "tls",
    BASELINE: "gloo",
}
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
MPI_SETTINGS = {
    "Open MPI": {
        "shared memory": {**_OPEN_MPI, "OMPI_MCA_btl": "self,sm"},
        "TCP": {**_OPEN_MPI, "OMPI_MCA_btl": "self,tcp"},
    },
    "MPICH": {
        "shared memory": {},
        "TCP": {"MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "tcp"},
    },
}
MPI_WORKER = Path(__file__).with_name("allreduce_mpi.py")
RANK = "ALLREDUCE_RANK"
ASK_S = 120.0


def num_calls(size: int) -> int:
    """All-reduces per measurement: more of the small ones."""
    return max(2, min(40, (8 << 20) // size))


# A worker's side


class Worker:
    """One worker of a wire or gloo team."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._rank = int(os.environ[RANK])
        self._all_reduce: Callable[[Any], object] = lambda tensor: None
        self._listener: Any = None

    def answer(self, request: dict[str, Any]) -> object:
        if request["do"] == "listen":
            from gangline.collectives import wire

            self._listener = wire.listen()
            address = self._listener.address
            return [address.host, address.port, address.host_id]
        if request["do"] == "join":
            self._join(request)
            return None
        tensor = self._torch.zeros(request["bytes"] // 4)
        return timed(lambda: self._all_reduce(tensor), calls=request["calls"])

    def _join(self, request: dict[str, Any]) -> None:
        if request["transport"] == "gloo":
            import torch.distributed as dist

            size = request["size"]
            store = dist.FileStore(request["store"], size)
            dist.init_process_group("gloo", store=store, rank=self._rank, world_size=size)
            self._all_reduce = dist.all_reduce
            return
        from gangline.collectives import GroupKey, wire

        known = request["addresses"]
        group = wire.connect(
            GroupKey("benchmark", 0, 0),
            rank=self._rank,
            addresses=[wire.WireAddress(host=h, port=p, host_id=i) for h, p, i in known],
            listener=self._listener,
            token=request["token"].encode(),
            options=wire.WireOptions(
                shared_memory=request["transport"] == "shared", **tls_contexts(request.get("tls"))
            ),
        )
        self._all_reduce = group.all_reduce


def tls_contexts(files: dict[str, str] | None) -> dict[str, ssl.SSLContext]:
    """Both ends of the links, each of which wants to see the other's certificate."""
    if files is None:
        return {}
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files["authority"])
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=files["authority"])
    client.check_hostname = False
    for context in (server, client):
        context.load_cert_chain(files["certificate"], files["key"])
    return {"server_tls": server, "client_tls": client}


def timed(call: Callable[[], object], *, calls: int) -> float:
    """The median time of a call, after one that warms up and waits for the others."""
    call()
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


# The benchmark's side


def team_of(transport: str, *, size: int, folder: Path) -> Team:
    """A team whose workers have made their group."""
    command = [sys.executable, __file__, "--as-worker"]
    team = Team(command, environments=[{RANK: str(rank)} for rank in range(size)])
    request: dict[str, Any] = {"do": "join", "transport": transport, "size": size}
    if transport == "gloo":
        request["store"] = str(folder / f"gloo-{size}")
    else:
        request["addresses"] = team.ask({"do": "listen"}, timeout_s=ASK_S)
        request["token"] = os.urandom(32).hex()
    if transport == "tls":
        request["tls"] = msgspec.structs.asdict(
            make_tls_files(folder, run="benchmark", hosts=["127.0.0.1"])
        )
    team.ask(request, timeout_s=ASK_S)
    return team


def mpi_teams(venv: Path, *, size: int) -> dict[str, Team]:
    """MPI's own launcher starts the workers; the first of them answers for all."""
    python, launcher = venv / "bin" / "python", venv / "bin" / "mpiexec"
    asked = [str(python), "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"]
    try:
        version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped MPI: no mpi4py in {venv} ({error})")
        return {}
    name = "Open MPI" if "Open MPI" in version else "MPICH"
    command = [str(launcher), "-n", str(size), str(python), str(MPI_WORKER)]
    teams = {}
    for kind, environment in MPI_SETTINGS[name].items():
        team = Team(command, environments=[environment])
        try:
            team.ask({"do": "time", "bytes": 4, "calls": 1}, timeout_s=ASK_S)
            teams[f"{name} ({kind})"] = team
        except TeamError as error:
            print(f"skipped {name} ({kind}): {error}")
    return teams


def measured(team: Team, num_bytes: int) -> Callable[[], float]:
    """One measurement of a team: its slowest worker."""

    def measure() -> float:
        request = {"do": "time", "bytes": num_bytes, "calls": num_calls(num_bytes)}
        return float(max(team.ask(request, timeout_s=ASK_S)))

    return measure


def copy_s(num_bytes: int) -> float:
    """What a memory copy of the tensor takes."""
    source, sink = np.ones(num_bytes, dtype=np.uint8), np.ones(num_bytes, dtype=np.uint8)
    return timed(lambda: np.copyto(sink, source), calls=9)


def loopback_s(num_bytes: int) -> float:
    """What it takes to pass so many bytes to another process through one loopback connection."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        sender = socket.create_connection(door.getsockname())
        receiver, _ = door.accept()
    child = os.fork()
    if child == 0:
        sender.close()
        space = bytearray(num_bytes)
        while receiver.recv_into(space, num_bytes, socket.MSG_WAITALL):
            receiver.send(b"x")
        os._exit(0)
    payload = bytes(num_bytes)

    def once() -> None:
        sender.sendall(payload)
        sender.recv(1)

    try:
        with sender, receiver:
            return timed(once, calls=9)
    finally:
        os.waitpid(child, 0)


def run(size: int, *, sizes: list[int], repeats: int, mpi_venvs: list[Path]) -> dict[str, Any]:
    """All sizes with so many workers; what cannot be measured is skipped with its reason."""
    found: dict[str, Comparison] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        teams: dict[str, Team] = {}
        for name, transport in WIRE.items():
            if transport == "tls" and make_tls_files is None:
                print(f"skipped {name}: the library cryptography is not there")
                continue
            team = team_of(transport, size=size, folder=folder)
            teams[name] = stack.enter_context(team)
        if not mpi_venvs:
            print("skipped MPI: no --mpi-venv was given")
        for venv in mpi_venvs:
            for name, team in mpi_teams(venv, size=size).items():
                teams[name] = stack.enter_context(team)
        for num_bytes in sizes:
            contenders = {name: measured(team, num_bytes) for name, team in teams.items()}
            title = f"{size} workers, {num_bytes >> 10} KB"
            comparison = compare(contenders, baseline=BASELINE, repeats=repeats)
            found[title] = with_limits(comparison, num_bytes, size=size)
            print(summary(title, found[title]), flush=True)
    return found


def with_limits(comparison: Comparison, num_bytes: int, *, size: int) -> Comparison:
    """How many times the physical limits each contender takes."""
    limits = {
        "× memory copy": copy_s(num_bytes),
        "× loopback": loopback_s(2 * (size - 1) * num_bytes // size),
    }
    for heading, limit_s in limits.items():
        times = {row.name: row.median_s / limit_s for row in comparison.rows}
        comparison = comparison.with_extra(heading, times)
    return comparison


def summary(title: str, comparison: Comparison) -> str:
    parts = [
        f"{row.name} {row.median_s * 1e3:.3f} ± {row.iqr_s * 1e3:.3f} ms"
        for row in comparison.rows
        if row.verdict != "noise floor"
    ]
    return f"{title}: {'; '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument(
        "--mpi-venv", type=Path, action="append", default=[], help="with numpy, mpi4py and an MPI"
    )
    parser.add_argument("--name", default="allreduce", help="of the files in benchmarks/results")
    chosen = parser.parse_args()
    if chosen.as_worker:
        serve(Worker().answer)
        return
    found: dict[str, Comparison] = {}
    for size in chosen.workers:
        found |= run(size, sizes=chosen.bytes, repeats=chosen.repeats, mpi_venvs=chosen.mpi_venv)
    print(save(chosen.name, found))


if __name__ == "__main__":
    main()
