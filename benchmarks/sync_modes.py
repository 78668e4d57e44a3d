# SPDX-License-Identifier: Apache-2.0
"""How soon a real model is good enough: full, none, percentage, flexible, and plain DDP.

    python benchmarks/sync_modes.py                       # all scenarios: about 30 minutes on 2 cores
    python benchmarks/sync_modes.py --only even --seeds 2

LeNet-5 on MNIST, real processes paced to the speeds of the nodes, in emulated networks (needs root).
All contenders have the same model, data, seeds, learning rate and global batch. Time is from the first
batch until the first worker's parameters reach 95 % on 4,000 test images, as the median of five copies
that are kept on the way, four in a second, and judged afterwards.

The percentage of each scenario is chosen with one seed, as the fastest of five, and compared with
others. Contenders take turns, seed by seed; `full` and DDP, which take minutes over slow links, for the
first `--slow-seeds` seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import tempfile
import threading
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from cluster_jobs import ClusterTeam, Emulation
from cluster_table import CLUSTERS
from gangline.engines.coordination import coordinator_process
from gangline.engines.job import Job
from gangline.eventlog import read_run
from gangline.planning.known import known_profile
from gangline.spec.cluster import Cluster, NetworkLink, Node
from gangline.spec.config import AUTO, FLAT, ExchangeConfig, RunConfig
from gangline.spec.event import RoundEnded
from gangline.spec.exchange.structure import RING, Structure
from gangline.spec.profile import Link
from gangline.spec.sync import parse_sync
from paced_teams import table, write_results
from paced_worker import Task
from sync_worker import Training

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = Path(__file__).with_name("sync_worker.py")
PERCENTAGES = (0.02, 0.05, 0.1, 0.25, 0.5)
DDP = "DDP"
SLOW = ("full", DDP)
FIXED = ("flexible", "none", *SLOW)
GLOBAL_BATCH, SAMPLES, EPOCHS, TARGET = 64, 16_000, 3, 0.95
CHOOSING_SEED = 100
_LOCAL = Link(latency_s=50e-6, bytes_per_s=1e9)
"""What this machine adds to emulated links, about."""
RUN_TIMEOUT_S = 420.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, and what is unsteady about it."""

    cluster: Cluster
    least_speed: float = 1.0
    """Below 1: workers are slower now and then, down to this part of their speed."""
    least_rate: float = 1.0
    """Below 1: the links between places are slower now and then, down to this part."""
    change_s: float = 0.0
    """When conditions change for good; 0: they do not."""
    late_rate: float = 1.0
    """What is left of the links' bandwidth after that."""
    slowed: tuple[int, ...] = ()
    """Workers that are five times slower after that."""


def _sites(rate: float, delay_s: float, *, speeds: tuple[float, ...] = (1.0, 1.0)) -> Cluster:
    """Two places of two nodes each, and a link between them."""
    nodes = tuple(
        Node(name=f"{place}{i}", place=place, speed=speed, bytes_per_s=25e6)
        for place, speed in zip(("here", "there"), speeds, strict=True)
        for i in range(2)
    )
    link = NetworkLink(between=("here", "there"), bytes_per_s=rate, delay_s=delay_s)
    return Cluster(nodes=nodes, links=(link,))


def _table_1() -> Cluster:
    """Paper 000's four groups, by two nodes each, its ARM boards behind links of 20 Mbit/s."""
    table_1 = CLUSTERS["paper_table_1"]
    links = tuple(
        msgspec.structs.replace(link, bytes_per_s=max(link.bytes_per_s or 0.0, 2.5e6))
        for link in table_1.links
    )
    return msgspec.structs.replace(table_1, links=links)


SCENARIOS: dict[str, Scenario] = {
    "even": Scenario(cluster=_sites(25e6, 0.0)),
    "paper_table_1": Scenario(cluster=_table_1()),
    "slow_shaky_link": Scenario(cluster=_sites(2.5e6, 0.01), least_rate=0.2),
    "unsteady_compute": Scenario(cluster=_sites(5e6, 0.002), least_speed=0.3),
    "link_breaks_down": Scenario(cluster=_sites(12.5e6, 0.002), change_s=4.0, late_rate=0.05),
    "site_slows_down": Scenario(cluster=_sites(5e6, 0.002), change_s=4.0, slowed=(2, 3)),
}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How one run went."""

    seconds: float
    to_target_s: float | None
    accuracy: float
    epochs: int
    merges: int = 0
    """Rounds in the background that counted."""
    took_s: float = 0.0
    """The median of them, from opening to end."""
    busy_s: float = 0.0
    """The median time for which one kept the most burdened team from computing."""


def structure_of(cluster: Cluster) -> Structure | None:
    """A ring in each place, and one across."""
    places: dict[str, list[int]] = {}
    for worker, node in enumerate(cluster.nodes):
        places.setdefault(node.place or "", []).append(worker)
    if len(places) == 1:
        return None
    groups = tuple(
        Structure(topology=RING, leader=members[0], members=tuple(members))
        for members in places.values()
    )
    return Structure(topology=RING, leader=groups[0].leader, groups=groups)


@contextlib.contextmanager
def unsteady(emulation: Emulation, scenario: Scenario, seed: int) -> Iterator[None]:
    """The links change while a job runs."""
    stop = threading.Event()
    rng = random.Random(seed)

    def change() -> None:
        elapsed_s = 0.0
        while not stop.wait(0.25):
            elapsed_s += 0.25
            is_late = 0 < scenario.change_s < elapsed_s
            rate = scenario.late_rate if is_late else 1.0
            emulation.network.throttle(rate * rng.uniform(scenario.least_rate, 1.0))

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        emulation.network.throttle(1.0)


def run_once(
    team: ClusterTeam,
    emulation: Emulation,
    scenario: Scenario,
    options: argparse.Namespace,
    *,
    mode: str,
    seed: int,
) -> Result:
    """One job from its first batch to its last."""
    workers = len(scenario.cluster.nodes)
    training = Training(
        data=options.data,
        samples=SAMPLES,
        epochs=options.epochs,
        seed=seed,
        target=TARGET,
        least_speed=scenario.least_speed,
        slowed=scenario.slowed,
        change_s=scenario.change_s,
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangline-bench-")))
        launches = [] if mode == DDP else _coordinate(scenario, mode, emulation, folder, stack)
        task = Task(
            kind="ddp" if mode == DDP else "gangline",
            model="lenet5",
            global_batch=GLOBAL_BATCH,
            allocation="balanced",
            folder=str(folder),
            launches=launches,
            workers=workers,
        )
        stack.enter_context(unsteady(emulation, scenario, seed))
        answers = team.team.ask(
            {
                "do": "train",
                "task": msgspec.to_builtins(task),
                "training": msgspec.to_builtins(training),
            },
            timeout_s=RUN_TIMEOUT_S,
        )
        rounds = [] if mode == DDP else _rounds_of(folder)
    first = answers[0]
    return Result(
        seconds=first["seconds"],
        to_target_s=first["to_target_s"],
        accuracy=first["accuracy"],
        epochs=options.epochs,
        merges=len(rounds),
        took_s=median(one.took_s for one in rounds) if rounds else 0.0,
        busy_s=median(one.busy_s for one in rounds) if rounds else 0.0,
    )


def _rounds_of(folder: Path) -> list[RoundEnded]:
    return [
        event
        for event in read_run(folder)
        if isinstance(event, RoundEnded) and event.is_committed and not event.is_whole
    ]


def _coordinate(
    scenario: Scenario, mode: str, emulation: Emulation, folder: Path, stack: contextlib.ExitStack
) -> list[dict[str, str]]:
    sync = parse_sync(mode)
    job = Job(
        config=RunConfig(
            run="bench",
            cluster=Cluster.of_speeds((1.0,) * len(scenario.cluster.nodes)),
            exchange=ExchangeConfig(
                # The groups of those that train apart; for `full` it is planned, as by `gangline run`.
                structure=(structure_of(scenario.cluster) or FLAT) if sync.is_relaxed else AUTO,
                sync=mode,
            ),
        ),
        run_dir=folder,
        script=WORKER,
        profile=None if sync.is_relaxed else known_profile(scenario.cluster, local=_LOCAL),
        enclosures=emulation.network.enclosures,
    )
    emulation.current = folder
    stack.enter_context(coordinator_process(job, os.environ))
    return [launch.to_environment() for launch in job.launches()]


def run_scenario(name: str, options: argparse.Namespace) -> dict[str, list[Result]]:
    """Chooses a percentage, unless modes are given; then lets all contenders take turns."""
    scenario = SCENARIOS[name]
    results: dict[str, list[Result]] = {}
    with contextlib.ExitStack() as stack:
        emulation = stack.enter_context(Emulation(scenario.cluster))
        team = stack.enter_context(ClusterTeam(len(scenario.cluster.nodes), worker=WORKER))
        team.enter(emulation)
        chosen = ""
        best_s = float("inf")
        for rate in () if options.modes else PERCENTAGES:
            mode = f"percentage({rate:g})"
            found = run_once(team, emulation, scenario, options, mode=mode, seed=CHOOSING_SEED)
            say(name, f"{mode} (choosing)", found)
            reached_s = found.to_target_s or 10 * found.seconds
            if reached_s < best_s:
                chosen, best_s = mode, reached_s
        for seed in range(options.seeds):
            for mode in options.modes or (chosen, *FIXED):
                if seed >= options.slow_seeds and mode in SLOW:
                    continue
                found = run_once(team, emulation, scenario, options, mode=mode, seed=seed)
                say(name, mode, found)
                results.setdefault(mode, []).append(found)
    return results


def say(name: str, mode: str, found: Result) -> None:
    """One line on a run."""
    reached = "not reached" if found.to_target_s is None else f"{found.to_target_s:.1f} s"
    print(
        f"{name}: {mode}: 95 % after {reached}, {found.epochs} epochs in {found.seconds:.1f} s, "
        f"{found.accuracy:.2%}; {found.merges} merges of {found.took_s * 1e3:.0f} ms, "
        f"busy {found.busy_s * 1e3:.1f} ms",
        flush=True,
    )


def summarise(results: dict[str, list[Result]]) -> list[list[str]]:
    """A row per mode: median time to the target with its range, and how it compares."""
    times = {
        mode: sorted(one.to_target_s or float("inf") for one in runs)
        for mode, runs in results.items()
    }
    flexible_s = median(times.get("flexible", [float("nan")]))
    rows = []
    for mode, seconds in times.items():
        accuracy = median(one.accuracy for one in results[mode])
        rows.append(
            [
                mode,
                f"{median(seconds):.1f} [{seconds[0]:.1f}, {seconds[-1]:.1f}]",
                f"{median(seconds) / flexible_s:.2f}",
                f"{median(one.seconds for one in results[mode]):.1f}",
                f"{accuracy:.2%}",
            ]
        )
    return rows


def main() -> None:
    """Runs the scenarios, prints a table each, and keeps what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slow-seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--name", default="sync_modes", help="of the files with the results")
    parser.add_argument("--modes", nargs="*", default=[], help="only these, choosing nothing")
    parser.add_argument("--data", default=os.environ.get("GANGLINE_DATA", "../shared/data"))
    options = parser.parse_args()
    options.data = str(Path(options.data).resolve() / "mnist")
    if not Path(options.data).exists():
        parser.error(f"there is no MNIST in {options.data}; give --data, or set GANGLINE_DATA")
    measured: dict[str, Any] = {}
    text = "# Time to 95 % on MNIST\n\n"
    for name in options.only:
        results = run_scenario(name, options)
        head = ["mode", "to 95 % (s)", "by flexible's", f"{options.epochs} epochs (s)", "accuracy"]
        text += f"## {name}\n\n{table(head, summarise(results))}\n\n"
        measured[name] = {
            mode: {
                "epoch_s": median(one.seconds for one in runs) / options.epochs,
                "to_target_s": median(one.to_target_s or float("inf") for one in runs),
                "accuracy": median(one.accuracy for one in runs),
                "runs": [msgspec.to_builtins(one) for one in runs],
            }
            for mode, runs in results.items()
        }
        write_results(options.name, text, measured)


if __name__ == "__main__":
    main()
