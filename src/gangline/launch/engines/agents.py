# SPDX-License-Identifier: Apache-2.0
"""A run whose agents are started by an engine of somebody else's: they call, and found the job."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.called.reception import Reception
from gangline.engines.hosts.engine import HostsEngine
from gangline.engines.hosts.seat import Seat
from gangline.launch.engines.kind import PreparedRun
from gangline.launch.engines.remote import brief_of, chosen, job_of, pieces, problems
from gangline.launch.folder import make_run_dir
from gangline.launch.joining.code import select_files
from gangline.spec.errors import LaunchError
from gangline.spec.machines.hosts import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gangline.engines.called.reception import Caller
    from gangline.engines.hosts.line import Line
    from gangline.engines.supervision import Watcher
    from gangline.files.tls import TlsFiles
    from gangline.launch.engines.kind import Tell
    from gangline.launch.engines.slots import Slots
    from gangline.launch.program import Program
    from gangline.spec.config import HostsConfig, RunConfig

_POLL_S = 0.02
_CLOSE_S = 3.0
_TELL_S = 15.0
"""Somebody who waits for so long wants to know for whom."""


class Company:
    """The agents that have called, each on a seat of its own."""

    def __init__(self, reception: Reception, make_seat: Callable[[Host, _LineBox], Seat]) -> None:
        self._reception = reception
        self._make_seat = make_seat
        self._boxes: dict[str, _LineBox] = {}
        self.seats: list[Seat] = []
        self.slots = 0
        """How many agents there will be, as those say that have come."""
        self.ranks: dict[str, int] = {}
        """The rank of each, by the name of its seat."""

    def rank_of(self, seat: Seat) -> int:
        """Which place of the engine a seat is."""
        return self.ranks[seat.host.name]

    def look(self) -> list[Seat]:
        """Who has come since the last time, and was not known."""
        return [seat for one in self._reception.look() if (seat := self._seat(one)) is not None]

    def _seat(self, caller: Caller) -> Seat | None:
        self.slots = max(self.slots, caller.slots)
        name, number = caller.name, 1
        while name in self._boxes and not self._boxes[name].is_free:
            number += 1
            name = f"{caller.name}.{number}"
        self.ranks[name] = caller.rank
        if name in self._boxes:  # one that was lost has come again
            self._boxes[name].put(caller.line)
            return None
        box = self._boxes[name] = _LineBox(caller.line)
        seat = self._make_seat(Host(name=name, workers=1), box)
        box.seat = seat
        self.seats.append(seat)
        return seat


class _LineBox:
    """Where the line of an agent waits until its seat takes it."""

    def __init__(self, line: Line) -> None:
        self._line: Line | None = line
        self.seat: Seat | None = None

    @property
    def is_free(self) -> bool:
        """Whether the seat has lost its agent, and another one may have it."""
        return self._line is None and self.seat is not None and self.seat.problem is not None

    def put(self, line: Line) -> None:
        self._line = line

    def take(self) -> Line | None:
        line, self._line = self._line, None
        return line


@contextmanager
def called(
    config: RunConfig,
    program: Program,
    *,
    run_dir: Path | None,
    tell: Tell,
    slots: Slots,
    arrange: Callable[[RunConfig, Sequence[int]], RunConfig] = lambda asked, ranks: asked,
) -> Iterator[PreparedRun]:
    """The job of those agents that come; `tell` hears for whom it is waited.

    `arrange` may change what was asked, when the rank of each worker is known.
    """
    include = [Path(one) for one in config.hosts.include]
    files = select_files(program, include) if config.hosts.bring else []
    name, folder = make_run_dir(
        Path(program.name),
        name=config.run or None,
        run_dir=run_dir,
        resume=config.checkpoint.resume,
    )
    named = msgspec.structs.replace(config, run=name)
    folder = folder.resolve()
    tls = _certificates(named, folder)
    reception = Reception((config.hosts.listen_at[0], 0), tls)

    def seat_of(host: Host, box: _LineBox) -> Seat:
        return Seat(
            host,
            brief=brief_of(host, program, run=name, brings=config.hosts.bring),
            files=lambda: pieces(files),
            listen=config.hosts.listen_at[0],
            make_line=box.take,
        )

    company = Company(reception, seat_of)
    try:
        slots.start(reception.invitation, folder)
        founders = _gather(company, slots, config.hosts, tell)
        arranged = arrange(named, [company.ranks[one] for one in founders])
        job = job_of(arranged, program, folder, company.seats, founders, tls=tls)
        arrivals = _Arrivals(company, slots)
        yield PreparedRun(
            job,
            lambda watcher: HostsEngine(
                job, tuple(company.seats), watcher=watcher, arrivals=arrivals.look
            ),
        )
    finally:
        reception.close()
        for seat in company.seats:
            seat.close()
        slots.close()


class _Arrivals:
    """Who comes while the job runs; and whether the engine itself has ended."""

    def __init__(self, company: Company, slots: Slots) -> None:
        self._company = company
        self._slots = slots
        self._is_told = False

    def look(self, watcher: Watcher) -> Sequence[Seat]:
        problem = None if self._is_told else self._slots.problem()
        if problem is not None:
            self._is_told = True
            watcher.note("engine_ended", problem)
        return self._company.look()


def _certificates(config: RunConfig, folder: Path) -> TlsFiles:
    """An authority for the run, and a certificate for all addresses of this machine."""
    from gangline.files.certificates import make_tls_files, own_hosts

    return make_tls_files(folder, run=config.run, hosts=own_hosts(config.hosts.listen_at[0]))


def _gather(company: Company, slots: Slots, asked: HostsConfig, tell: Tell) -> dict[str, int]:
    """How many workers each of those that have come begins with. Raises LaunchError for too few."""
    most = asked.max_workers or sys.maxsize
    begun_s = told_s = time.monotonic()
    while True:
        company.look()
        for seat in company.seats:
            seat.look()
        counts = chosen(sorted(company.seats, key=company.rank_of), most)
        come, waited_s = sum(counts.values()), time.monotonic() - begun_s
        expected = min(slots.expected or company.slots or sys.maxsize, most)
        is_late = 0 < asked.wait_s <= waited_s
        unfit = problems(company.seats)
        if come >= expected or (is_late and come >= asked.min_workers):
            return _enough(counts, asked, unfit)
        problem = slots.problem()
        if problem is not None or (is_late and unfit) or _has_failed(company, expected):
            raise LaunchError("; ".join(one for one in (unfit, problem) if one))
        if time.monotonic() - told_s > _TELL_S:
            told_s = time.monotonic()
            of_all = "" if expected == sys.maxsize else f" of {expected}"
            tell(f"{come}{of_all} agents have come after {waited_s:.0f} s; others are waited for")
        time.sleep(_POLL_S)


def _has_failed(company: Company, expected: int) -> bool:
    """Whether all have come, and some cannot run workers."""
    tried = [seat for seat in company.seats if seat.is_tried]
    return len(tried) >= expected and any(seat.problem is not None for seat in tried)


def _enough(counts: dict[str, int], asked: HostsConfig, unfit: str) -> dict[str, int]:
    come = sum(counts.values())
    if come < asked.min_workers:
        raise LaunchError(
            f"{come} workers can begin, and it takes {asked.min_workers} (--min-workers): "
            f"{unfit or 'the engine has no more places'}"
        )
    return counts
