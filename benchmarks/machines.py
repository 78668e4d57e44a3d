# SPDX-License-Identifier: Apache-2.0
"""Machines that join by a link: the time until all of them train, and what a relay costs two of them.

    sudo .venv/bin/python benchmarks/machines.py --part start     # 2, 4 and 8 machines, 3 times each
    sudo .venv/bin/python benchmarks/machines.py --part relay     # 1 MB and 25 MB

Every machine is a network namespace of this one, and all share its cores: with many of them the time
goes to starting as many pythons on these cores, which real machines do side by side.

`start`: one machine runs `gangline up train.py`; the others run the line that it prints, as soon as it
is there. A stage ends when the last machine has ended it.

`relay`: three members, with TLS as in a job (`--plain`: without). The first two exchange directly, and,
in another group, as two that only call out and do not reach each other: by way of the third.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import TYPE_CHECKING

from gangline.emulation.namespaces import inside
from gangline.eventlog import read_run
from gangline.spec.event import Decision, LogOpened, StepDone
from harness import machine_facts, save
from paced_teams import table, write_results
from relayed_members import networked, relayed
from tormented_jobs import exit_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.spec.event import AnyEvent

LIMIT_S = 600.0
SCRIPT = """\
import sys, time, torch
print("imported", time.time(), flush=True)
import gangline
from torch.utils.data import DataLoader, TensorDataset
gangline.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.rand(256, 4), torch.ones(256, 1))
model, optimizer, loader = gangline.prepare(model, optimizer, DataLoader(data, batch_size=64))
for _ in gangline.epochs(10**6):
    are_all = gangline.world_size() == int(sys.argv[1])
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    time.sleep(0.05)
    if gangline.any(are_all):
        break
"""


class Command:
    """`gangline` on one machine, in a folder of its own; every line that it prints has its time."""

    def __init__(self, namespace: int, folder: Path, *words: str) -> None:
        folder.mkdir(exist_ok=True)
        self._lines: list[tuple[float, str]] = []
        line = [sys.executable, "-u", "-m", "gangline.cli.main", *words]
        self._process = inside(
            namespace,
            lambda: Popen(line, cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.append((time.time(), line))

    def said(self, words: str) -> tuple[float, str]:
        """Waits for the first line with these words: when it came, and the line."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            has_ended = not self._reader.is_alive()
            for when, line in list(self._lines):
                if words in line:
                    return when, line
            if has_ended:
                break
            time.sleep(0.01)
        raise RuntimeError(f"{words!r} was not said: {self._lines}")

    def finish(self) -> None:
        """Waits until it has ended well."""
        if self._process.wait(LIMIT_S) != 0:
            self._reader.join()
            raise RuntimeError(f"it failed: {''.join(line for _, line in self._lines)}")

    def close(self) -> None:
        """Ends it, if it has not ended."""
        self._process.terminate()
        self._process.wait()


def started(hosts: int) -> dict[str, float]:
    """How long after the first command the last of so many machines had ended each stage."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        namespaces = networked(stack, hosts)
        first, *others = places = [folder / str(number) for number in range(hosts)]
        first.mkdir()
        (first / "train.py").write_text(SCRIPT)
        began = time.time()
        words = ["up", "--everybody", "--run-dir", "run", "train.py", str(hosts)]
        up = stack.enter_context(closing(Command(namespaces[0], first, *words)))
        printed, line = up.said("gangline join")
        words = [*shlex.split(line)[1:], "--yes", "--run-dir", "run"]
        joins = [
            stack.enter_context(closing(Command(namespace, place, *words)))
            for namespace, place in zip(namespaces[1:], others, strict=True)
        ]
        ends = {
            "link printed": printed,
            "joins have entered": max(one.said("offers the code")[0] for one in joins),
            "code brought": max(one.said("joining ")[0] for one in joins),
        }
        for one in (*joins, up):
            one.finish()
        logs = [(place / "run" / "workers" / "0.log").read_text() for place in places]
        ends["torch imported"] = max(float(log.split()[1]) for log in logs)
        ends |= logged(read_run(first / "run", notes=[]), hosts)
    return {stage: end - began for stage, end in ends.items()}


def logged(events: Iterable[AnyEvent], hosts: int) -> dict[str, float]:
    """When the event logs have the last hello, the first view with all, and their first step."""
    hellos, views, steps = [], [], {}
    for event in events:
        match event:
            case LogOpened(source=source) if source.startswith("worker "):
                hellos.append(event.t)
            case Decision(what="publish_view") if event.numbers.get("members") == hosts:
                views.append(event.t)
            case StepDone():
                steps.setdefault((event.view, event.step), []).append(event.t)
    together = [max(times) for times in steps.values() if len(times) == hosts]
    if not views or not together:
        raise RuntimeError(f"{hosts} machines never took a step together")
    return {"hello answered": max(hellos), "view of all": min(views), "step of all": min(together)}


def stage_row(hosts: int, runs: list[dict[str, float]]) -> list[str]:
    """The medians of what each stage took after the one before, and of the whole."""
    taken = [[0.0, *run.values()] for run in runs]
    parts = [[after - before for before, after in pairwise(ends)] for ends in taken]
    medians = [median(column) for column in zip(*parts, strict=True)]
    return [str(hosts), *(f"{one:.2f} s" for one in (*medians, median(e[-1] for e in taken)))]


def asked() -> argparse.Namespace:
    """The flags, of which each part has its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("start", "relay"), required=True)
    parser.add_argument("--repeats", type=int, help="start: 3, relay: 10 (2 at least)")
    parser.add_argument("--hosts", type=int, nargs="+", help="start: how many (2 4 8)")
    parser.add_argument("--megabytes", type=int, nargs="+", help="relay: sizes (1 25)")
    parser.add_argument("--plain", action="store_true", help="relay: no TLS")
    given = parser.parse_args()
    if given.hosts if given.part == "relay" else given.megabytes or given.plain:
        parser.error("--hosts is for --part start, --megabytes and --plain are for --part relay")
    if min(given.hosts or [2]) < 2 or min(given.megabytes or [1]) < 1:
        parser.error("there are 2 machines at least, and sizes of 1 MB at least")
    return given


def main() -> None:
    """Measures, prints and saves."""
    given = asked()
    exit_on_sigterm()
    if given.part == "relay":
        found = relayed(given.megabytes or [1, 25], given.repeats or 10, is_plain=given.plain)
        print(save("machines_relay", found))
        return
    facts, repeats = machine_facts(), given.repeats or 3
    runs = {hosts: [started(hosts) for _ in range(repeats)] for hosts in given.hosts or [2, 4, 8]}
    rows = [stage_row(hosts, own) for hosts, own in runs.items()]
    heads = ["machines", *next(iter(runs.values()))[0], "together"]
    write_results("machines_start", f"{table(heads, rows)}\n", [facts, runs])


if __name__ == "__main__":
    main()
