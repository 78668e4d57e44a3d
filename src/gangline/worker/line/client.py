# SPDX-License-Identifier: Apache-2.0
"""A worker's line to the coordinator: two threads beside the training loop, which never waits for it.

The coordinator may go away and come back: training goes on, and the line is taken up again.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import ssl
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from gangline.collectives.forking import close_in_children
from gangline.files.tls import client_context, explain
from gangline.protocol.messages import (
    FINISHED,
    MAX_MESSAGE_BYTES,
    CheckpointAnswered,
    CheckpointWritten,
    Dismissed,
    Failed,
    FetchState,
    Finished,
    FromCoordinator,
    FromTeam,
    FromWorker,
    Gathered,
    Goodbye,
    Held,
    Hello,
    Knock,
    Leaving,
    Measured,
    MeasureLink,
    Noted,
    OfTeam,
    PartAsked,
    PartGiven,
    Ping,
    Pong,
    Probe,
    Probed,
    Ready,
    Refused,
    Released,
    RoundOpened,
    SaveAsked,
    Saved,
    SavedBy,
    ServeLink,
    Stopped,
    ToTeam,
    ViewPublished,
    decode_from_coordinator,
    encode,
)
from gangline.spec.config import DEFAULT_MAX_AWAY_S
from gangline.spec.errors import (
    ExchangeAborted,
    LaunchError,
    LeftBehindError,
    MismatchError,
    RefusedError,
)
from gangline.worker.line.beside import Beside
from gangline.worker.line.isolation import ALONE_S, Isolation
from gangline.worker.line.linkprobe import answer
from gangline.worker.line.partpost import PartPost
from gangline.worker.line.probing import find_callable
from gangline.worker.line.refinding import given_up
from gangline.worker.line.teampost import TeamPost

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.spec.exchange.address import WireAddress
    from gangline.spec.view import View, Whole

T = TypeVar("T")

_log = logging.getLogger("gangline.worker")

_PING_INTERVAL_S = 0.5
_DEAF_S = 5.0
"""A coordinator that echoes nothing for so long is called anew: the network may have lost the line."""
_GATHER_S = 0.02
"""Measurements of steps shorter than this are sent together: waking a thread costs the loop more
than making the message."""
_KEPT_VIEWS = 64
_POST_WAIT_S = 600.0
"""How long a team waits for the coordinator, which may be away, or for the other teams."""
_RETRY_S = (0.05, 0.1, 0.2, 0.2, 0.2, 0.5, 1.0)
_UNAUTHORISED = (401, 403)
_REFUSED = "the coordinator refused this worker"


class ControlClient:
    """Sends what the worker measures, keeps what the coordinator publishes."""

    def __init__(
        self,
        find_url: Callable[[], str],
        *,
        token: str,
        hello: Hello,
        break_off: Callable[[int, int], None],
        authority: str | None = None,
        waiting_s: Callable[[], float] = lambda: 0.0,
        alone_s: float = ALONE_S,
        max_away_s: float = DEFAULT_MAX_AWAY_S,
        ports: tuple[int, int] | None = None,
    ) -> None:
        """`authority` is a PEM file: who must vouch for a coordinator that speaks TLS.

        `break_off` is told the oldest group, and gathering of founders, that is not given up;
        `waiting_s` says how long this worker has been in its present exchange; where that, and the
        coordinator's absence, last for longer than `alone_s` while no member is reached, it ends.
        When it needs a coordinator that has been away for `max_away_s`, it gives up. `ports` are the
        first and the last at which this worker may listen.
        """
        self.is_elastic = hello.is_elastic
        """Whether a lost group can be replaced while the job goes on."""
        self.is_dismissed = False
        """Whether this worker may go."""
        self.newest_recovery = -1
        """The newest group that replaced a broken one."""
        self.entered = -1
        """The group that this worker has entered."""
        self.team = -1
        """The team whose group it has entered; -1: that of all workers, who are in step."""
        self.has_moved = False
        """Whether the newest view is that of another team than this worker has been in."""
        self.held = 0
        """The newest order to stand still (odd) or to go on (even) that it knows of."""
        self.is_save_asked = False
        """Whether a checkpoint is wanted, due or not."""
        self.post = TeamPost()
        """What it was told as a member of a team."""
        self.parts = PartPost()
        """The parts of global batches that it was given."""
        self._break_off = break_off
        self._waiting_s = waiting_s
        self._isolation = Isolation(waiting_s, alone_s)
        self._standing: dict[type[FromWorker], FromWorker] = {}
        self._find_url = find_url
        self._url = ""
        self._token = token
        self._ports = ports
        self._authority = authority
        self._hello = hello
        self._outgoing: queue.SimpleQueue[list[FromWorker] | None] = queue.SimpleQueue()
        self._gathering: list[FromWorker] = []
        self._handed_over_s = 0.0
        self._send_lock = threading.Lock()
        self._changed = threading.Condition()
        self._connection: ClientConnection | None = None
        self._is_closed = False
        self._has_said_goodbye = False
        self._is_released = False
        self._cut_until_s = 0.0
        self._gathered: Gathered | None = None
        self._published: dict[int, ViewPublished] = {}
        self._answers: dict[int, CheckpointAnswered] = {}
        self._saved: dict[str, SavedBy | None] = {}
        self._offer: FetchState | None = None
        self._refusal: LaunchError | MismatchError | None = None
        self._stopped: Stopped | None = None
        self._is_dissolved = False
        self._latency_s = 0.0
        self._heard_s = time.perf_counter()
        self._hung_up_s = 0.0
        self._max_away_s = max_away_s
        self._away_since_s: float | None = time.monotonic()
        self._beside = _start_beside(token, authority) if hello.is_elastic else None
        if self._beside is not None:
            close_in_children(self._beside, self._beside.pipe)
        self._threads = [
            threading.Thread(target=self._receive, name="gangline-control-in", daemon=True),
            threading.Thread(target=self._send, name="gangline-control-out", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- for the training loop -------------------------------------------------------------------

    def send(self, message: FromWorker) -> None:
        """Queues a message; never waits. What the coordinator must know is said again to a new one."""
        if isinstance(message, OfTeam):
            message = msgspec.structs.replace(message, team=self.team)
        with self._send_lock:
            if isinstance(message, Leaving):
                of_team = {k: one for k, one in self._standing.items() if isinstance(one, FromTeam)}
                self._standing = {**of_team, Leaving: message}
            elif isinstance(message, Ready | Failed | PartAsked | FromTeam):
                self._standing = {**self._standing, type(message): message}
            self._gathering.append(message)
            now_s = time.perf_counter()
            if (
                not isinstance(message, Measured | Noted)
                or now_s - self._handed_over_s >= _GATHER_S
            ):
                self._handed_over_s = now_s
                self._outgoing.put(self._take_gathered())

    def withdraw(self, kind: type[FromWorker]) -> None:
        """What was last said of this kind does not hold any more."""
        with self._send_lock:
            self._standing = {one: said for one, said in self._standing.items() if one is not kind}

    def _take_gathered(self) -> list[FromWorker]:
        gathered, self._gathering = self._gathering, []
        return gathered

    @property
    def latency_s(self) -> float:
        """The last round trip to the coordinator."""
        return self._latency_s

    @property
    def newest_view(self) -> int:
        """The number of the newest view that this worker holds, -1 if none."""
        return max(self._published, default=-1)

    def view(self, number: int) -> View:
        """A view that this worker holds."""
        return self._published[number].view

    def wait_gathered(self, timeout_s: float, *, after: int = -1) -> Gathered:
        """Waits until all founders of the job have come, for more than the `after`-th time."""

        def find() -> Gathered | None:
            gathered = self._gathered
            return gathered if gathered is not None and gathered.attempt > after else None

        return self._wait(find, timeout_s, "the other workers")

    @property
    def gathering(self) -> int:
        """How often the founders had to gather again, as far as this worker knows; -1: not once."""
        return -1 if self._gathered is None else self._gathered.attempt

    def addresses(self, number: int) -> tuple[WireAddress, ...]:
        """How the members of a view reach each other, in rank order."""
        return self._published[number].addresses

    @property
    def seed(self) -> int:
        """The seed of the epochs' order, as the coordinator was told by the founders."""
        return self._published[self.newest_view].seed

    @property
    def pulled(self) -> str:
        """The allocation by which parts of global batches are pulled; empty: each has its share."""
        return self._published[self.newest_view].pulled

    def wait_group(
        self, last: int, *, worker: int, timeout_s: float, gathering: int | None = None
    ) -> View | None:
        """Waits for a view of a newer group than `last` with this worker in it; None: it may go.

        With a founder's `gathering`, raises ExchangeAborted where there is a newer one.
        """

        def find() -> tuple[View | None] | None:
            if gathering is not None and self.gathering > gathering:
                raise ExchangeAborted("a founder was lost before the first view")
            return self._find_group(last, worker)

        return self._wait(find, timeout_s, "a view with this worker in it")[0]

    @property
    def spares(self) -> dict[int, WireAddress]:
        """How those are reached that wait outside of the newest view."""
        published = self._published.get(self.newest_view)
        return {} if published is None else published.spares

    def poll_group(
        self, last: int, *, worker: int, timeout_s: float
    ) -> tuple[View | FetchState | None] | None:
        """As `wait_group`; None where there is no such view in time.

        Or, said once, who has the state with which an epoch begins, for a spare. Raises ExchangeAborted
        where this worker was given another team, whose groups have other numbers.
        """

        def find() -> tuple[View | FetchState | None] | None:
            if self.has_moved:
                raise ExchangeAborted("this worker was given another team")
            found = self._find_group(last, worker)
            if found is not None or self._offer is None:
                return found
            offer, self._offer = self._offer, None
            return (offer,)

        self._isolation.wait()
        found = self._poll(find, timeout_s)
        if found is not None:
            self._isolation.go_on()
        return found

    def is_awaited(self, last: int, *, worker: int) -> bool:
        """Whether there is a newer group than `last` with this worker in it, or it may go."""
        return self.has_moved or self._poll(lambda: self._find_group(last, worker), 0.0) is not None

    def wait_end(self, last: int, *, worker: int, timeout_s: float) -> View | None:
        """The script is over: waits for a view of a newer group than `last`; None: it may end."""
        if self._connection is None:
            return None
        self._is_released = False
        self.send(Finished(group=last))

        def find() -> tuple[View | None] | None:
            return self._find_group(last, worker) or ((None,) if self._is_released else None)

        found = self._poll(find, timeout_s)
        return None if found is None else found[0]

    def is_out(self, worker: int, *, last: int) -> bool:
        """Whether the coordinator is there, and others went on from the group `last` without it."""
        view = self._published[self.newest_view].view if self._published else None
        is_without = view is not None and view.group > last and worker not in view.members
        return is_without and self._connection is not None

    def _find_group(self, last: int, worker: int) -> tuple[View | None] | None:
        view = self._published[self.newest_view].view if self._published else None
        if view is not None and view.group > last and worker in view.members:
            return (view,)
        return (None,) if self.is_dismissed else None

    def wait_post(self, find: Callable[[], T | None], what: str) -> T:
        """Waits for what the coordinator tells a team. Raises ExchangeAborted where it is broken."""

        def find_or_give_up() -> T | None:
            found = find()
            is_over = self.has_moved or self.newest_recovery > self.entered
            # A team that is no more still hears how its last round ended, but begins no other.
            if is_over and (found is None or isinstance(found, RoundOpened)):
                raise ExchangeAborted("this team is not what it was")
            return found

        return self._wait(find_or_give_up, _POST_WAIT_S, what)

    def check_team(self) -> None:
        """Raises ExchangeAborted where this worker's team is broken, and what ends the job for it."""
        if self._refusal is not None:
            raise self._refusal
        if self.has_moved or self.newest_recovery > self.entered:
            raise ExchangeAborted("this team is not what it was")

    def wait_held(self, number: int, timeout_s: float) -> bool:
        """Waits for a newer order than this one to stand still, or for anything else that is said.

        False where none will come: this worker was let go, or the coordinator has been away for too
        long. A job does not end for want of somebody who would have it go on.
        """
        with self._changed:
            if self._refusal is not None or self.is_dismissed or self.held > number:
                return False
            since_s = self._away_since_s
            if since_s is not None and time.monotonic() - since_s >= self._max_away_s:
                return False
            self._changed.wait(timeout_s)
            return self.held <= number

    def check_dissolved(self) -> None:
        """Raises what the coordinator said where whoever started the job has ended it."""
        if self._is_dissolved and self._refusal is not None:
            raise self._refusal

    def wait_moved(self) -> None:
        """Waits until this worker is in another team, or may go."""
        self._wait(lambda: self.has_moved or self.is_dismissed or None, _POST_WAIT_S, "a team")

    def cut(self, for_s: float) -> None:
        """Takes the line down, and up again after so many seconds: a fault to be survived."""
        self._cut_until_s = time.monotonic() + for_s
        if self._connection is not None:
            self._connection.close()

    def ask(self, written: CheckpointWritten, timeout_s: float) -> CheckpointAnswered | None:
        """What the coordinator says to a checkpoint; None where it does not answer in time."""
        self._answers.clear()
        self.send(written)
        try:
            return self._wait(lambda: self._answers.get(written.step), timeout_s, "an answer")
        except (LaunchError, MismatchError):
            return None

    def ask_writers(self, saved: Saved) -> None:
        """Asks who else has written a file; the answer is there when it is there."""
        with self._changed:
            self._saved.setdefault(saved.path, None)
        self.send(saved)

    def writers(self, path: str, timeout_s: float = 0.0) -> tuple[int, ...]:
        """Who has written a file, though not all of them may; nobody where that is not known."""
        with self._changed:
            self._changed.wait_for(lambda: self._saved.get(path) is not None, timeout_s)
            found = self._saved.get(path)
        return () if found is None else found.workers

    def await_stop(self, timeout_s: float) -> Stopped | None:
        """Why the job ends with an error for everybody, if the coordinator says so in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._refusal is not None, timeout_s)
        return self._stopped

    def say_goodbye(self, goodbye: Goodbye) -> None:
        """The last message: it is on its way when this returns, if the line is up."""
        self.send(goodbye)
        self._outgoing.put(None)
        if self._connection is not None:
            self._threads[1].join(1.0)
        self._has_said_goodbye = True

    def close(self, reason: str = FINISHED) -> None:
        """Says goodbye, if it has not, and ends both threads."""
        if not self._has_said_goodbye:
            self.say_goodbye(Goodbye(reason=reason))
        self._is_closed = True
        with self._changed:
            connection = self._connection
            self._changed.notify_all()
        if connection is not None:
            connection.close()
        self._threads[0].join(2.0)
        if self._beside is not None:
            self._beside.close()

    # --- threads ---------------------------------------------------------------------------------

    def _wait(self, find: Callable[[], T | None], timeout_s: float, what: str) -> T:
        found = self._poll(find, timeout_s)
        while found is None and self.held % 2:  # those that stand still are waited for
            found = self._poll(find, timeout_s)
        if found is None:
            raise LaunchError(
                f"waited {timeout_s:.0f} s for {what}, in vain: look whether all workers and the "
                "coordinator are running (`gangline status`)"
            )
        return found

    def _poll(self, find: Callable[[], T | None], timeout_s: float) -> T | None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._refusal is not None:
                    raise self._refusal
                found = find()
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, self._patience_with_coordinator()))

    def _patience_with_coordinator(self) -> float:
        """How much longer it may be away, or what is to be said where it was away for too long."""
        away_s = 0.0 if self._away_since_s is None else time.monotonic() - self._away_since_s
        if away_s >= self._max_away_s:
            raise given_up(self._find_url, away_s=away_s)
        return self._max_away_s - away_s

    def _receive(self) -> None:
        attempt = 0
        while not self._is_closed and self._refusal is None:
            try:
                with self._connect() as connection:
                    self._announce(connection)
                    attempt = 0
                    for payload in connection:
                        if isinstance(payload, bytes):
                            self._take(decode_from_coordinator(payload))
            except InvalidStatus as error:
                if error.response.status_code in _UNAUTHORISED:
                    self._refuse(
                        LaunchError(f"{_REFUSED}: its token is not that of a worker of this run")
                    )
            except ssl.SSLCertVerificationError as error:
                text = explain(error, url=self._url, authority=self._authority)
                self._refuse(LaunchError(f"{_REFUSED}: {text}"))
            except (OSError, WebSocketException, msgspec.DecodeError, UnicodeError, LaunchError):
                pass  # the coordinator is away, or talks nonsense: try again
            except Exception:  # whatever it is, this worker must not go deaf for good
                _log.exception("what the coordinator said could not be heard")
            if not self._is_closed and self._is_cut_off():
                self._refuse(LeftBehindError(self._isolation.explain()))
            with self._changed:
                if self._away_since_s is None:
                    self._away_since_s = time.monotonic()
                self._connection = None
                cut_s = self._cut_until_s - time.monotonic()
                if not self._is_closed:
                    self._changed.wait(max(_RETRY_S[min(attempt, len(_RETRY_S) - 1)], cut_s))
            attempt += 1

    def _is_cut_off(self) -> bool:
        """Whether this worker has reached nobody for too long; the coordinator is away."""
        published = self._published.get(self.newest_view)
        if published is None:
            return False
        addresses = zip(published.view.members, published.addresses, strict=True)
        peers = {member: address for member, address in addresses if member != self._hello.worker}
        away_s = time.perf_counter() - self._heard_s
        try:
            return self._isolation.is_over(away_s=away_s, peers=peers)
        except OSError:  # no descriptor is left, say: not known now, and looked for again
            return False

    def _connect(self) -> ClientConnection:
        self._url = self._find_url()
        return connect(
            f"{self._url}/ws/worker",
            ssl=client_context(self._authority) if self._url.startswith("wss") else None,
            additional_headers={"Authorization": f"Bearer {self._token}"},
            max_size=MAX_MESSAGE_BYTES,
            open_timeout=_DEAF_S,
            close_timeout=1,
            compression=None,
            proxy=None,
        )

    def _announce(self, connection: ClientConnection) -> None:
        close_in_children(self, [connection.socket])
        for message in (self._hello, *self._standing.values()):
            connection.send(encode(message))
        with self._changed:
            self._heard_s = time.perf_counter()
            self._away_since_s = None
            self._connection = connection
            self._changed.notify_all()

    def _take(self, message: FromCoordinator) -> None:
        self._heard_s = time.perf_counter()
        match message:
            case Pong(sent_s=sent_s):
                self._latency_s = time.perf_counter() - sent_s
                return
            case Refused(reason=reason, is_left_behind=is_left_behind):
                self._is_dissolved = message.is_dissolved
                text = f"{_REFUSED}: {reason}"
                # Who was never in a view may be refused for what all workers have in common.
                kind = RefusedError if self._published else LaunchError
                self._refuse((LeftBehindError if is_left_behind else kind)(text))
                return
            case Stopped(reason=reason):
                self._stopped = message
                self._refuse(MismatchError(reason))
                return
            case Knock() | ServeLink() | MeasureLink():
                threading.Thread(
                    target=self._survey, args=(message,), name="gangline-survey", daemon=True
                ).start()
                return
            case Probe():
                threading.Thread(
                    target=self._probe, args=(message,), name="gangline-probe", daemon=True
                ).start()
                return
            case Gathered(attempt=attempt) if attempt > self.gathering >= 0:
                self._break_off(0, attempt)
            case Dismissed():
                self.is_dismissed = True
            case Released():
                self._is_released = True
            case Held(number=number):
                self.held = max(self.held, number)
            case SaveAsked():
                self.is_save_asked = True
            case ViewPublished(is_recovery=True, view=view) if view.group > self.newest_recovery:
                self.newest_recovery = view.group
                self._break_off(view.group, 0)  # before anybody can enter the new group
        with self._changed:
            if isinstance(message, Gathered):
                self._gathered = message
                # Should the line be lost: it is this worker that comes back, not another one.
                self._hello = msgspec.structs.replace(self._hello, worker=message.worker)
            elif isinstance(message, CheckpointAnswered):
                self._answers[message.step] = message
            elif isinstance(message, FetchState):
                self._offer = message
            elif isinstance(message, SavedBy):
                self._saved[message.path] = message
            elif isinstance(message, PartGiven):
                self.parts.put(message)
            elif isinstance(message, ToTeam):
                self.post.put(message)
            elif isinstance(message, ViewPublished):
                self._note_team(message.view)
                self._published[message.view.number] = message
                for old in sorted(self._published)[:-_KEPT_VIEWS]:
                    del self._published[old]
            self._changed.notify_all()

    def _note_team(self, view: View) -> None:
        """Views and groups of another team have numbers of their own."""
        known = self._published.get(self.newest_view)
        if known is not None and not _is_same_team(known.view.whole, view.whole):
            self._published.clear()
            self.has_moved = True
            self.newest_recovery = -1
            self.post.forget_leases()

    def _survey(self, asked: Knock | ServeLink | MeasureLink) -> None:
        host = self._hello.address.host
        answer(asked, token=self._token, host=host, send=self.send, ports=self._ports)

    def _probe(self, probe: Probe) -> None:
        addresses = dict(zip(probe.workers, probe.addresses, strict=True))
        self.send(
            Probed(number=probe.number, reached=find_callable(self._hello.address, addresses))
        )

    def _refuse(self, error: LaunchError | MismatchError) -> None:
        """Nothing will come of this worker: whatever waits raises this, from now on."""
        with self._changed:
            self._refusal = error
            self._changed.notify_all()
        self._break_off(sys.maxsize, 0)

    def _send(self) -> None:
        pinged_s = 0.0
        while True:
            try:
                messages = self._outgoing.get(timeout=_PING_INTERVAL_S)
                if messages is None:
                    return
            except queue.Empty:
                with self._send_lock:
                    messages = self._take_gathered()
            if time.perf_counter() - pinged_s > _PING_INTERVAL_S:
                pinged_s = time.perf_counter()
                messages.append(Ping(sent_s=pinged_s, waiting_s=self._waiting_s()))
                if self._beside is not None:
                    self._beside.beat(self._url, self._hello.worker)
            connection = self._await_connection()
            silent_s = time.perf_counter() - max(self._heard_s, self._hung_up_s)
            if connection is not None and silent_s > _DEAF_S:
                self._hung_up_s = time.perf_counter()
                connection.close()
            if connection is not None:
                with contextlib.suppress(OSError, WebSocketException):
                    # If it fails, the receiving thread notices too, and connects again.
                    for message in messages:
                        connection.send(encode(message))

    def _await_connection(self) -> ClientConnection | None:
        with self._changed:
            while self._connection is None and not self._is_closed and self._refusal is None:
                self._changed.wait()
            return self._connection


def _start_beside(token: str, authority: str | None) -> Beside | None:
    """Who speaks for this worker when its threads cannot; None where nobody can be started."""
    if sys.platform != "linux":
        return None
    try:
        return Beside(token=token, authority=authority)
    except OSError:
        return None


def _is_same_team(before: Whole | None, after: Whole | None) -> bool:
    """Whether the numbers of two views, and of their groups, are counted by the same team.

    The workers of a job that was one become a team, which is called the root; others do not.
    """
    if before is None or after is None:
        return after is None or after.is_root
    return before.team == after.team
