# SPDX-License-Identifier: Apache-2.0
"""`gangline chaos`: torments a running local job at random, to see it survive."""

import contextlib
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.output import say
from gangline.files.tokens import OBSERVER_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.protocol.launch import is_of_run
from gangline.spec.errors import LaunchError, UsageError

KINDS = ("kill", "hang")
_HANG_S = 5.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Victim(msgspec.Struct, frozen=True):
    """A worker as the coordinator's status shows it."""

    worker: int
    pid: int
    is_connected: bool
    step: int = -1
    """The last step that it has made; -1: none, so it has no state of the job yet."""
    is_member: bool = True


class _View(msgspec.Struct):
    members: tuple[int, ...] = ()


class _Workers(msgspec.Struct):
    workers: list[Victim]
    view: _View | None = None


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("chaos")(chaos)


def chaos(
    run_dir: Annotated[Path, typer.Argument(help="The run folder of a job on this machine.")],
    every: Annotated[str, typer.Option(help="Time between two faults, such as 15s or 2m.")] = "15s",
    kinds: Annotated[str, typer.Option(help="What to do to workers: kill, hang.")] = "kill,hang",
    duration: Annotated[
        str | None, typer.Option("--for", help="When to stop (default: with the run).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed picks the same faults.")] = None,
) -> None:
    """Kill or stop random workers of a running job, and say so. At least one is left alone."""
    chosen = parse_kinds(kinds)
    every_s = parse_duration(every, flag="--every")
    for_s = float("inf") if duration is None else parse_duration(duration, flag="--for")
    rng = random.Random(seed)
    folder = run_dir.resolve()
    find_victims(folder)  # an error now rather than after the first pause
    end_s = time.monotonic() + for_s
    while time.monotonic() + every_s <= end_s:
        time.sleep(every_s)
        try:
            victims = find_victims(folder)
        except LaunchError:
            say("the run is over")
            return
        eligible = spare_the_last(victims)
        if not eligible:
            say("nobody is tormented: the job would lose its state with the last that has it")
            continue
        torment(rng.choice(eligible), rng.choice(chosen))


def spare_the_last(victims: list[Victim]) -> list[Victim]:
    """Those that may be lost: one member that has the state of the job must be left.

    A newcomer has none before its first step, and who was put out has an old one.
    """
    holders = [one for one in victims if one.is_member and one.step >= 0]
    if len(holders) > 1:
        return victims
    return [one for one in victims if one not in holders] if holders else []


def torment(victim: Victim, kind: str) -> None:
    """Does it. A worker that ended in the meantime has escaped."""
    with contextlib.suppress(ProcessLookupError):
        if kind == "kill":
            say(f"kills worker {victim.worker} (process {victim.pid})")
            os.kill(victim.pid, signal.SIGKILL)
            return
        say(f"stops worker {victim.worker} (process {victim.pid}) for {_HANG_S:g} s")
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            time.sleep(_HANG_S)
        finally:
            os.kill(victim.pid, signal.SIGCONT)


def find_victims(run_dir: Path) -> list[Victim]:
    """The workers of the run that are processes of this machine and of this run."""
    contact = RunContact(run_dir, token_file=run_dir / OBSERVER_TOKEN)
    status = msgspec.json.decode(contact.ask("/api/status"), type=_Workers)
    members = () if status.view is None else status.view.members
    run = contact.announcement.run
    return [
        msgspec.structs.replace(one, is_member=one.worker in members)
        for one in status.workers
        if one.is_connected and is_of_run(one.pid, run, run_dir)
    ]


def parse_kinds(text: str) -> list[str]:
    """The kinds of faults in a list such as `kill,hang`."""
    kinds = [part.strip() for part in text.split(",")]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise UsageError(f"--kinds {text}: {unknown[0]!r} is not one of {', '.join(KINDS)}")
    return kinds


def parse_duration(text: str, *, flag: str) -> float:
    """Seconds, from a time such as `15s`, `500ms` or `2m`; a bare number is seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", text.strip())
    seconds = float(match[1]) * _UNITS_S[match[2] or "s"] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"{flag} {text}: write a time above 0, such as 15s, 500ms or 2m")
    return seconds
