# SPDX-License-Identifier: Apache-2.0
"""A survey of links: who measures with whom, and what two workers find between them."""

from __future__ import annotations

import contextlib
import socket
import threading
from itertools import pairwise
from typing import Any

import pytest

from gangline.coordinator.structure.survey import PATIENCE_S, Survey, paired
from gangline.protocol.messages import Knock, Knocked, LinkFound, LinkServed, MeasureLink, ServeLink
from gangline.spec.errors import UsageError
from gangline.spec.exchange.address import WireAddress
from gangline.worker.line.linkprobe import answer, knock, measure, open_port, serve


def addresses(*hosts: str) -> dict[int, WireAddress]:
    return {
        worker: WireAddress(host="10.0.0.1", port=1000 + worker, host_id=host)
        for worker, host in enumerate(hosts)
    }


class Field:
    """A survey whose workers answer at once, by where they are on a line."""

    def __init__(self, hosts: list[str], places: list[float]) -> None:
        self.survey = Survey(addresses(*hosts), 0.0)
        self.places = places
        self.measured: list[set[int]] = []
        self.rounds: list[list[int]] = []

    def run(self) -> None:
        pending = self.survey.begin()
        while pending:
            serving = [o.worker for o in pending if isinstance(o.message, ServeLink)]
            self.rounds += [serving] if serving else []
            pending = [more for o in pending for more in self.answers(o.worker, o.message)]

    def answers(self, worker: int, message: object) -> list[object]:
        match message:
            case Knock():
                others = [a.port - 1000 for a in message.addresses]
                times = tuple(abs(self.places[worker] - self.places[one]) for one in others)
                answer = Knocked(number=0, times_s=times)
            case ServeLink(number=number):
                answer = LinkServed(number=number, port=2000 + worker)
            case MeasureLink(number=number, address=address):
                self.measured.append({worker, address.port - 2000})
                answer = LinkFound(
                    number=number,
                    latency_s=1e-3,
                    num_bytes=1000,
                    there_s=(1.0,) * 5,
                    back_s=(2.0,) * 5,
                )
            case _:
                raise AssertionError(message)
        return list(self.survey.receive(worker, answer, 1.0))


def test_pairs_of_a_round_have_nobody_in_common() -> None:
    for count in (2, 3, 7, 16, 64):
        row = list(range(count))
        rounds = paired(row)
        for pairs in rounds:
            seen = [worker for pair in pairs for worker in pair]
            assert len(seen) == len(set(seen))
        flat = {frozenset(pair) for pairs in rounds for pair in pairs}
        assert len(flat) == sum(map(len, rounds)), "nobody measures the same way twice"
        assert {frozenset(pair) for pair in pairwise(row)} <= flat
        assert len(flat) <= count * (count - 1).bit_length()
    assert sum(map(len, paired(list(range(64))))) < 64 * 63 / 2 / 5


def test_neighbours_in_the_row_are_near_each_other() -> None:
    field = Field(list("abcdef"), [0.0, 10.0, 0.1, 10.1, 0.2, 10.2])
    field.run()
    status = field.survey.status()
    assert status.is_over
    assert status.num_done == status.num_pairs == len(field.measured)
    # One pair is enough between two sites; inside each, all are connected by near pairs.
    assert {0, 2} in field.measured
    assert {2, 4} in field.measured
    assert {1, 3} in field.measured
    assert {3, 5} in field.measured


def test_one_worker_per_host_measures_and_one_pair_inside() -> None:
    field = Field(["a", "a", "a", "b", "b"], [0.0] * 5)
    field.run()
    assert field.measured == [{0, 3}, {0, 1}, {3, 4}]
    assert field.survey.status().hosts == [[0, 1, 2], [3, 4]]


def test_it_goes_on_without_those_that_do_not_answer() -> None:
    survey = Survey(addresses("a", "b", "c"), 0.0)
    survey.begin()
    survey.receive(0, Knocked(number=0, times_s=(0.1, 0.2)), 1.0)
    assert survey.tick(2.0) == []
    now = 1.0
    while not survey.is_over:
        now += PATIENCE_S + 1
        survey.tick(now)
    status = survey.status()
    assert status.links == []
    assert status.errors == [
        "worker 0 and 1: no answer",
        "worker 1 and 2: no answer",
        "worker 0 and 2: no answer",
    ]


def test_a_survey_of_one_worker_is_refused() -> None:
    with pytest.raises(UsageError, match="2 workers or more on up to 64 hosts, and there are 1"):
        Survey(addresses("a"), 0.0)


def test_two_workers_find_what_lies_between_them() -> None:
    sent: list[object] = []
    served = threading.Event()

    def send(message: object) -> None:
        sent.append(message)
        served.set()

    question = ServeLink(number=4)
    server = threading.Thread(
        target=lambda: answer(question, token="t", host="127.0.0.1", send=send)
    )
    server.start()
    assert served.wait(10)
    (told,) = sent
    assert isinstance(told, LinkServed)
    found = measure(4, WireAddress(host="127.0.0.1", port=told.port), token="t")
    server.join(10)
    assert not server.is_alive()
    assert found.error == ""
    assert found.latency_s > 0
    assert len(found.there_s) == len(found.back_s) == 5
    assert found.num_bytes >= 64 << 10


def test_a_knock_takes_as_long_as_the_peer_takes_to_accept() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listening:
        address = WireAddress(host="127.0.0.1", port=listening.getsockname()[1])
        (there,) = knock(Knock(number=0, addresses=(address,))).times_s
    (gone,) = knock(Knock(number=0, addresses=(address,))).times_s
    assert there > 0
    assert gone == -1


def free_range(count: int) -> tuple[int, int]:
    """Ports in a row, of which nobody has one."""
    for first in range(20000, 60000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first, first + count - 1
    raise AssertionError("no ports in a row are free")


def test_links_are_measured_at_a_port_at_which_workers_may_listen() -> None:
    first, last = free_range(3)
    sent: list[Any] = []
    served = threading.Event()

    def send(message: Any) -> None:
        sent.append(message)
        served.set()

    with socket.create_server(("127.0.0.1", first)):
        server = threading.Thread(
            target=lambda: answer(
                ServeLink(number=4), token="t", host="127.0.0.1", send=send, ports=(first, last)
            )
        )
        server.start()
        assert served.wait(10)
        assert isinstance(sent[0], LinkServed)
        found = measure(4, WireAddress(host="127.0.0.1", port=sent[0].port), token="t")
        server.join(10)
    assert sent[0].port == first + 1
    assert found.error == ""


def test_where_the_workers_have_all_ports_the_survey_is_told_so() -> None:
    sent: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer(
            ServeLink(number=4), token="t", host="127.0.0.1", send=sent.append, ports=(port, port)
        )
    assert sent[0].number == 4
    assert f"of --wire-ports {port}-{port} one must be left by the workers" in sent[0].error


def test_who_does_not_know_the_token_measures_nothing() -> None:
    listening = open_port("127.0.0.1")
    address = WireAddress(host="127.0.0.1", port=listening.getsockname()[1])
    server = threading.Thread(target=lambda: serve(listening, token="right"))
    server.start()
    found = measure(1, address, token="wrong")
    server.join(10)
    assert found.error.startswith(f"{address}: ")
    assert found.there_s == ()
    gone = measure(2, address, token="right")
    assert gone.error != ""


def test_the_way_between_two_that_only_call_out_follows_from_its_halves() -> None:
    """Worker 1 can be called by both; 0 and 2 do not reach each other."""
    closed = {
        worker: WireAddress(
            host="10.0.0.1", port=1000 + worker, host_id=f"h{worker}", calls_out=worker != 1
        )
        for worker in range(3)
    }
    field = Field(["h0", "h1", "h2"], [0.0, 1.0, 3.0])
    field.survey = Survey(closed, 0.0)
    find = field.answers

    def answers(worker: int, message: object) -> list[object]:
        if isinstance(message, MeasureLink) and {worker, message.address.port - 2000} == {0, 2}:
            found = LinkFound(number=message.number, error="nobody answers")
            return list(field.survey.receive(worker, found, 1.0))
        return find(worker, message)

    field.answers = answers  # type: ignore[method-assign]
    field.run()
    status = field.survey.status()
    assert status.is_over
    (passed_on,) = [one for one in status.links if {one.source, one.target} == {0, 2}]
    assert passed_on.latency_s == pytest.approx(2e-3)
    assert passed_on.there_s == [2.0] * 5, "the slower half"
    assert passed_on.num_bytes == 1000


def test_nothing_is_said_of_a_way_that_nobody_can_pass_on() -> None:
    closed = {
        worker: WireAddress(
            host="10.0.0.1", port=1000 + worker, host_id=f"h{worker}", calls_out=True
        )
        for worker in range(2)
    }
    survey = Survey(closed, 0.0)
    survey.begin()
    survey.tick(2 * PATIENCE_S)
    survey.tick(4 * PATIENCE_S)
    assert survey.status().links == []
