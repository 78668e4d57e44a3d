# SPDX-License-Identifier: Apache-2.0
"""Storms of joins and leaves: does the job train to its end, and is nobody left hanging?

    python benchmarks/storms.py                       # 8 storms of 30 s, two in each mode
    python benchmarks/storms.py --modes full --storms 1 --seconds 10

`gangline run` starts three workers. During a storm, at random moments, workers join by `gangline join`
and members are asked to leave, whoever started them. Then nobody disturbs the job any more. It must
end with exit code 0, every sample of every epoch must be used once (the ledger over all event logs),
and all joiners must end by themselves.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from gangline.eventlog import read_run
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.observe.ledger import read_ledger
from gangline.protocol.status import Status
from gangline.spec.errors import LaunchError, LogError, UsageError
from harness import machine_facts
from paced_teams import table, write_results

SCRIPT = Path(__file__).with_name("storm_worker.py")
COMMAND = (sys.executable, "-m", "gangline.cli.main")
MODES = ("full", "flexible", "percentage(0.25)", "none")
SAMPLES, BATCH = 480, 24
WORKERS = 3
CALM_S = 120.0
"""So long the job may take after the storm."""
JOINERS_S = 20.0
"""So long joiners may take to end after the job."""


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one job."""

    mode: str
    seed: int
    joins: int
    leaves: int
    exit_code: int | None
    """None: it had to be killed."""
    wall_s: float
    num_hanging: int
    """Joiners that had to be killed."""
    joiners: list[int | None]
    """Their exit codes."""
    ledger: str
    """What is wrong with it; empty: nothing."""
    last_words: str

    @property
    def is_well(self) -> bool:
        """Whether all that was asked for is true."""
        return self.exit_code == 0 and not self.num_hanging and not self.ledger


class Gale:
    """One job, and the processes that were started for it."""

    def __init__(self, folder: Path, mode: str, *, epochs: int) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.rest = [str(SCRIPT), "--epochs", str(epochs), "--samples", str(SAMPLES)]
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.joiners: list[subprocess.Popen[bytes]] = []
        self.main = self._start(
            "run", f"--nodes={WORKERS}", f"--run-dir={self.run_dir}", f"--sync={mode}"
        )

    def _start(self, verb: str, *flags: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{verb}-{len(self.joiners) if verb == 'join' else ''}.out").open("wb")
        with log:
            return subprocess.Popen(
                [*COMMAND, verb, *flags, *self.rest],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def status(self) -> Status | None:
        """What the coordinator says; None while there is none."""
        try:
            contact = RunContact(self.run_dir, token_file=self.run_dir / OPERATOR_TOKEN)
            return msgspec.json.decode(contact.ask("/api/status"), type=Status)
        except (LaunchError, UsageError):
            return None

    def join(self) -> None:
        """One more worker, which finds the job by its folder."""
        own = f"--run-dir={self.folder / f'join-{len(self.joiners)}'}"
        self.joiners.append(self._start("join", str(self.run_dir), own))

    def leave(self, rng: random.Random) -> bool:
        """Asks a member to leave; whether there was one to ask, beside another that stays."""
        status = self.status()
        if status is None or status.view is None:
            return False
        staying = [one.worker for one in status.workers if one.state in ("training", "ready")]
        members = [one for one in status.view.members if one in staying]
        if len(members) < 2:
            return False
        try:
            contact = RunContact(self.run_dir, token_file=self.run_dir / OPERATOR_TOKEN)
            contact.ask("/api/leave", body=msgspec.json.encode({"worker": rng.choice(members)}))
        except (LaunchError, UsageError):
            return False
        return True

    def ledger_fault(self, *, epochs: int) -> str:
        """What is wrong with what was trained; empty: nothing."""
        folders = [self.run_dir, *sorted(self.folder.glob("join-*/"))]
        events = [
            event
            for one in folders
            if any((one / "events").glob("*.jsonl"))
            for event in read_run(one, notes=[])
        ]
        try:
            read_ledger(sorted(events, key=lambda event: event.t)).check(
                length=SAMPLES, epochs=epochs
            )
        except LogError as error:
            return str(error)
        return ""


def wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """Its exit code; None where it had to be killed, with all that it started."""
    try:
        return process.wait(max(0.1, timeout_s))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def rage(folder: Path, mode: str, *, seed: int, seconds: float, most: int, epochs: int) -> Storm:
    """One storm, and what came of it."""
    rng = random.Random(seed)
    gale = Gale(folder, mode, epochs=epochs)
    began_s = time.monotonic()
    num_leaves = 0
    try:
        while gale.main.poll() is None and time.monotonic() - began_s < CALM_S:
            status = gale.status()
            if status is not None and status.step >= 5:
                break
            time.sleep(0.1)
        moments = [(rng.uniform(0, seconds), "join") for _ in range(rng.randint(most // 2, most))]
        moments += [(rng.uniform(0, seconds), "leave") for _ in range(rng.randint(most // 2, most))]
        storm_s = time.monotonic()
        for moment, what in sorted(moments):
            time.sleep(max(0.0, storm_s + moment - time.monotonic()))
            if gale.main.poll() is not None:
                break
            if what == "join":
                gale.join()
            else:
                num_leaves += gale.leave(rng)
        code = wait(gale.main, CALM_S)
        wall_s = time.monotonic() - began_s
        until_s = time.monotonic() + JOINERS_S
        codes = [wait(one, until_s - time.monotonic()) for one in gale.joiners]
        words = (folder / "run-.out").read_text(errors="replace").strip().splitlines()[-3:]
        return Storm(
            mode=mode,
            seed=seed,
            joins=len(codes),
            leaves=num_leaves,
            exit_code=code,
            wall_s=wall_s,
            num_hanging=codes.count(None),
            joiners=codes,
            ledger=gale.ledger_fault(epochs=epochs),
            last_words=" / ".join(words),
        )
    finally:
        for process in [gale.main, *gale.joiners]:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def describe(storms: list[Storm]) -> str:
    """All of it as Markdown."""
    headings = [
        "mode",
        "seed",
        "joins",
        "leaves",
        "exit code",
        "seconds",
        "hanging joiners",
        "ledger",
    ]
    rows = [
        [
            storm.mode,
            str(storm.seed),
            str(storm.joins),
            str(storm.leaves),
            "killed" if storm.exit_code is None else str(storm.exit_code),
            f"{storm.wall_s:.0f}",
            str(storm.num_hanging),
            storm.ledger or "complete",
        ]
        for storm in storms
    ]
    facts = ", ".join(f"{name} {value}" for name, value in machine_facts().items())
    well = sum(storm.is_well for storm in storms)
    return "\n\n".join(
        [
            "# storms",
            f"{well} of {len(storms)} jobs trained to their end, with nobody left hanging.",
            table(headings, rows),
            f"Machine: {facts}.\n",
        ]
    )


def main() -> None:
    """Rages, prints, and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--storms", type=int, default=2, help="in each mode")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--most", type=int, default=10, help="joins, and leaves, of a storm")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where the run folders are kept")
    parser.add_argument("--name", default="storms", help="of the files in results/")
    options = parser.parse_args()
    storms = []
    for mode in options.modes:
        for number in range(options.storms):
            seed = options.seed + number
            with tempfile.TemporaryDirectory(prefix="gangline-bench-") as temporary:
                folder = Path(temporary)
                if options.keep is not None:
                    folder = options.keep / f"{mode}-{seed}"
                    folder.mkdir(parents=True)
                storm = rage(
                    folder,
                    mode,
                    seed=seed,
                    seconds=options.seconds,
                    most=options.most,
                    epochs=options.epochs,
                )
            storms.append(storm)
            print(storm, flush=True)
    write_results(options.name, describe(storms), storms)


if __name__ == "__main__":
    main()
