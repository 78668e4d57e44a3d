# SPDX-License-Identifier: Apache-2.0
"""Servers die one after the other while everybody trains: every update counts once, on all shards."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from serving_workers import Reference, Workers, entry, gradients, workers

from cases import quick_of
from gangline.spec.errors import ExchangeAborted, ServerLost
from wire_members import SHARED, TCP

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.spec.serving import Entry, Serving

NUM_WORKERS, CLOCKS, WAIT_S = 5, 12, 30.0


class Job:
    """The workers, with the part of the coordinator that matters here."""

    def __init__(self, made: Workers, seed: int) -> None:
        self.workers, self.rng = made, random.Random(seed)
        self.alive = set(range(NUM_WORKERS))
        self.places = [[0, 1], [1, 2], [2, 0]]
        self.entries: list[Entry] = []
        self.serving: Serving | None = None
        self.failures: list[BaseException] = []
        self._order = threading.Lock()

    def publish(self) -> None:
        number = 0 if self.serving is None else self.serving.number + 1
        lost = [w for w in range(NUM_WORKERS) if w not in self.alive]
        places = [(first, second) for first, second in self.places]
        self.serving = self.workers.serving(
            number, *places, lost=lost, applied=1 if self.entries else 0
        )
        for worker in self.alive:
            self.workers[worker].serving = self.serving
            self.workers[worker].host.follow(self.serving)
        for worker in self.alive:
            self.workers[worker].client.abort()

    def kill(self, victim: int) -> None:
        """Once all replicas are whole, as a coordinator makes sure of."""
        ends_at = time.monotonic() + WAIT_S
        while not all(n in self.workers[p[1]].host.whole for n, p in enumerate(self.places)):
            assert time.monotonic() < ends_at
            time.sleep(0.005)
        self.alive.discard(victim)
        self.workers[victim].die()
        for place in self.places:
            if place[0] == victim:
                place[0] = place[1]
            if victim in place or place[0] == place[1]:
                place[1] = self.rng.choice(sorted(self.alive - {place[0]}))
        self.publish()

    def train(self, team: int) -> None:
        client = self.workers[team].client
        try:
            for clock in range(CLOCKS):
                given = gradients(100 * team + clock)
                if not self._insist(team, lambda c=clock, g=given: client.push(c, g)):
                    return
                with self._order:
                    self.entries.append(entry(len(self.entries), (team, clock, 0.5)))
                    known = list(self.entries)
                if not self._insist(team, lambda k=known: client.pull(len(k), k)):
                    return
        except BaseException as error:
            self.failures.append(error)

    def _insist(self, team: int, ask: Callable[[], Any]) -> bool:
        """Asks again, of whoever serves, until it succeeds or this worker is dead."""
        while team in self.alive and self.serving is not None:
            try:
                self.workers[team].client.follow(self.serving)
                ask()
            except (ServerLost, ExchangeAborted):
                time.sleep(0.01)
            else:
                return True
        return False


@pytest.mark.parametrize("seed", quick_of(range(8), quick=[1]))
def test_servers_die_while_all_train(seed: int) -> None:
    compensation = 0.1 if seed % 4 == 3 else 0.0
    options = SHARED if seed % 2 else TCP
    with workers(NUM_WORKERS, options, patience_s=2.0, compensation=compensation) as made:
        job = Job(made, seed)
        job.publish()
        threads = [threading.Thread(target=job.train, args=(n,)) for n in range(NUM_WORKERS)]
        for thread in threads:
            thread.start()
        for victim in job.rng.sample(range(3), 2):
            time.sleep(job.rng.uniform(0.05, 0.2))
            job.kill(victim)
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert job.failures == []
        ends = []
        for number in sorted(job.alive):
            client = made[number].client
            assert job.serving is not None
            client.follow(job.serving)
            client.pull(len(job.entries), job.entries)
            ends.append(made[number].parameters)
        assert all(torch.equal(a, b) for end in ends for a, b in zip(end, ends[0], strict=True))
        if not compensation:
            reference = Reference()
            for one in job.entries:
                (part,) = one.parts
                reference.apply((0.5, gradients(100 * part.team + part.clock)))
            assert reference.is_equal(ends[0])
