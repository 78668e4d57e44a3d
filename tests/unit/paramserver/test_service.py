# SPDX-License-Identifier: Apache-2.0
"""Workers push to shards and pull from them: what they get is what a plain optimizer makes of it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from msgspec.structs import replace
from serving_workers import ALONE, SHAPES, Reference, entry, gradients, model, momentum, workers
from torch.optim import Adam, Optimizer

from gangline.paramserver.service.optimizers import load_state
from gangline.spec.errors import (
    ExchangeAborted,
    GradientError,
    MismatchError,
    ServerLost,
    UsageError,
)
from wire_members import SHARED, TCP, WAYS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives.wire import WireOptions

MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": momentum,
    "adam": lambda p: Adam(p, lr=0.01),
}


@WAYS
@pytest.mark.parametrize("maker", MAKERS)
def test_two_teams_and_two_servers_with_replicas_are_one_optimizer(
    options: WireOptions, maker: str
) -> None:
    reference = Reference(MAKERS[maker])
    with workers(3, options, make=MAKERS[maker]) as job:
        job.follow(job.serving(0, (0, 1), (1, 2)))
        entries = []
        for number in range(3):
            given = [gradients(10 * team + number) for team in (0, 2)]
            job[0].client.push(number, given[0])
            job[2].client.push(number, given[1])
            entries.append(entry(number, (0, number, 0.25), (2, number, 0.75)))
            reference.apply((0.25, given[0]), (0.75, given[1]))
            job[2].client.pull(number + 1, entries)
            assert reference.is_equal(job[2].parameters)
            assert job[2].client.pulled_at == (number + 1, number + 1)
        job[1].client.pull(3, entries)
        assert reference.is_equal(job[1].parameters)
        state = job[1].client.pull_state()
        load_state(job[1].optimizer, job[1].parameters, state)
        for own, other in zip(job[1].parameters, reference.parameters, strict=True):
            expected = reference.optimizer.state[other]
            assert job[1].optimizer.state[own].keys() == expected.keys()
            for key, value in job[1].optimizer.state[own].items():
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected[key]))


def test_a_worker_that_serves_all_needs_no_connection() -> None:
    reference = Reference()
    with workers(1, SHARED) as job:
        job.follow(job.serving(0, (0, ALONE)))
        given = gradients(0)
        pushed = [gradient.clone() for gradient in given]
        job[0].client.push(0, pushed)
        for gradient in pushed:
            gradient.zero_()  # what was pushed is the server's own
        reference.apply((1.0, given))
        job[0].client.pull(1, [entry(0, (0, 0, 1.0))])
        assert reference.is_equal(job[0].parameters)


@WAYS
def test_a_primary_is_lost_and_the_same_push_counts_once(options: WireOptions) -> None:
    reference = Reference()
    with workers(4, options, patience_s=0.5) as job:
        job.follow(job.serving(0, (0, 1), (1, 2)))
        entries = [entry(0, (3, 0, 1.0))]
        job[3].client.push(0, gradients(0))
        job[3].client.pull(1, entries)
        job[3].client.push(1, gradients(1), entries=entries)
        job[0].die()
        with pytest.raises(ServerLost, match="shard 0") as caught:
            job[3].client.push(2, gradients(2))
        assert caught.value.shard == 0
        job.follow(job.serving(1, (1, 2), (1, 2), lost=[0], applied=1))
        for clock in (1, 2, 2):
            job[3].client.push(clock, gradients(clock))
        entries += [entry(1, (3, 1, 1.0)), entry(2, (3, 2, 1.0))]
        job[3].client.pull(3, entries)
        for seed in range(3):
            reference.apply((1.0, gradients(seed)))
        assert reference.is_equal(job[3].parameters)
        wait_for(lambda: job[2].host.whole == (0, 1))
        job[1].die()
        job.follow(job.serving(2, (2, ALONE), (2, ALONE), lost=[0, 1], applied=3))
        job[3].client.push(3, gradients(3), entries=entries)
        reference.apply((1.0, gradients(3)))
        job[3].client.pull(4, [*entries, entry(3, (3, 3, 1.0))])
        assert reference.is_equal(job[3].parameters)


def test_a_lost_replica_is_replaced_before_a_push_is_acknowledged() -> None:
    reference = Reference()
    with workers(3, SHARED, patience_s=0.4) as job:
        job.follow(job.serving(0, (0, 1)))
        job[2].client.push(0, gradients(0))
        job[1].die()
        with pytest.raises(ServerLost, match="shard 0"):
            job[2].client.push(1, gradients(1))
        job.follow(job.serving(1, (0, 2), lost=[1], applied=0))
        job[2].client.push(1, gradients(1))
        job[0].die()
        job.follow(job.serving(2, (2, ALONE), lost=[0, 1], applied=0))
        job[2].client.pull(2, [entry(0, (2, 0, 1.0)), entry(1, (2, 1, 1.0))])
        for seed in range(2):
            reference.apply((1.0, gradients(seed)))
        assert reference.is_equal(job[2].parameters)


def test_without_replicas_all_shards_go_back_to_what_was_pulled_last() -> None:
    reference = Reference()
    with workers(3, SHARED, patience_s=0.4) as job:
        job.follow(job.serving(0, (0, ALONE), (1, ALONE)))
        job[2].client.push(0, gradients(0))
        entries = [entry(0, (2, 0, 1.0))]
        job[2].client.pull(1, entries)
        assert job[2].client.kept_at == 1
        job[2].client.push(1, gradients(1), entries=entries)
        job[0].die()
        with pytest.raises(ServerLost):
            job[2].client.pull(1)
        job.follow(job.serving(1, (1, ALONE), (1, ALONE), lost=[0], applied=1, source=2))
        with pytest.raises(ServerLost, match="not whole"):
            job[1].client.pull(1)
        job[2].client.restore()
        job[2].client.restore()
        job[1].client.pull(1)
        assert all(
            torch.equal(a.detach(), b.detach())
            for a, b in zip(job[1].parameters, job[2].parameters, strict=True)
        )
        with pytest.raises(MismatchError, match="has not pushed"):
            job[1].client.pull(2, [entry(1, (2, 1, 1.0))])
        job[2].client.push(2, gradients(2))
        job[2].client.pull(2, [entry(1, (2, 2, 1.0))])
        reference.apply((1.0, gradients(0)))
        indices = job[2].client._indices
        for index in indices[0]:  # the lost shard begins with an empty state
            reference.optimizer.state.pop(reference.parameters[index])
        reference.apply((1.0, gradients(2)))
        assert reference.is_equal(job[2].parameters)


def test_who_has_kept_nothing_cannot_restore() -> None:
    with workers(1, SHARED) as job:
        job.follow(job.serving(0, (0, ALONE), applied=4, source=0))
        with pytest.raises(MismatchError, match="update 4, and worker 0 has kept nothing"):
            job[0].client.restore()


@WAYS
def test_rows_travel_alone(options: WireOptions) -> None:
    with workers(2, options) as job:
        job.follow(job.serving(0, (0, ALONE), (0, ALONE)))
        grads: list[Any] = [None] * len(SHAPES)
        sparse = torch.sparse_coo_tensor(
            torch.tensor([[4, 1, 4]]), torch.ones(3, 3), (5, 3), check_invariants=True
        )
        grads[2] = sparse
        job[1].client.push(0, grads)
        rows = torch.tensor([1, 4])
        before = model()[2].detach()
        job[1].client.pull_rows(2, rows, upto=1, entries=[entry(0, (1, 0, 1.0))])
        after = job[1].parameters[2].detach()
        assert torch.equal(after[rows], before[rows] - 0.1 * torch.tensor([[1.0], [2.0]]))
        assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])
        assert torch.equal(job[1].parameters[0], model()[0])
        job[1].client.pull(1, [entry(0, (1, 0, 1.0))])
        assert job[1].client.pulled_at == (1, 1)
        with pytest.raises(MismatchError, match="rows 5 to 5 of parameter 2"):
            job[1].client.pull_rows(2, torch.tensor([5]))
        with pytest.raises(UsageError, match="rows of parameter 9"):
            job[1].client.pull_rows(9, rows)


@pytest.mark.parametrize("own", [0, 1], ids=["near", "far"])
def test_bad_pushes_are_refused_and_the_next_one_is_taken(own: int) -> None:
    with workers(2, SHARED) as job:
        job.follow(job.serving(0, (0, ALONE), (0, ALONE)))
        client = job[own].client
        wrong = gradients(0)
        wrong[0] = torch.zeros(9)
        with pytest.raises(MismatchError, match=r"parameter 0 is given as \(9,\)"):
            client.push(0, wrong)
        wrong = gradients(0)
        wrong[1][0] = float("nan")
        with pytest.raises(GradientError, match="parameter 1"):
            client.push(0, wrong)
        with pytest.raises(MismatchError, match="'speed'"):
            client.push(0, gradients(0), [{"speed": 1.0}])
        with pytest.raises(UsageError, match="1 gradients for 5"):
            client.push(0, [None])
        with pytest.raises(MismatchError, match="after 2 updates"):
            client.pull(2)
        with pytest.raises(MismatchError, match="team 7 at clock 0"):
            client.pull(1, [entry(0, (7, 0, 1.0))])
        client.forget(own)
        with pytest.raises(MismatchError, match=f"team {own} is not known"):
            client.push(0, gradients(0))
        client.team = 5
        client.push(0, gradients(0))
        client.pull(1, [entry(0, (5, 0, 1.0))])


def test_an_optimizer_that_fails_is_an_error_for_who_asks() -> None:
    class Broken(Adam):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("no step today")

    with workers(2, SHARED, make=Broken) as job:
        job.follow(job.serving(0, (0, ALONE)))
        job[1].client.push(0, gradients(0))
        with pytest.raises(Exception, match="RuntimeError: no step today"):
            job[1].client.pull(1, [entry(0, (1, 0, 1.0))])


@WAYS
def test_an_abort_ends_a_wait_and_follow_ends_the_abort(options: WireOptions) -> None:
    with workers(2, options, patience_s=30.0) as job:
        serving = job.serving(0, (0, ALONE))
        job[1].follow(serving)  # the server has not heard of it: the client waits for a connection
        with ThreadPoolExecutor(1) as pool:
            push = pool.submit(job[1].client.push, 0, gradients(0))
            time.sleep(0.1)
            assert not push.done()
            began_s = time.monotonic()
            job[1].client.abort()
            with pytest.raises(ExchangeAborted):
                push.result(5.0)
            assert time.monotonic() - began_s < 1.0
        with pytest.raises(ExchangeAborted):
            job[1].client.pull(0)
        job[0].follow(serving)
        job[1].client.follow(serving)
        job[1].client.push(0, gradients(0))


def test_an_abort_leaves_what_begins_after_it_alone() -> None:
    """Whoever is told by one shard that it was broken off may go on while others are."""
    with workers(3, SHARED, patience_s=30.0) as job:
        serving = job.serving(0, (0, ALONE), (2, ALONE))
        job[1].follow(serving)
        job[2].follow(serving)  # the server of the first shard has not heard of it
        with ThreadPoolExecutor(1) as pool:
            for _ in range(10):
                push = pool.submit(job[1].client.push, 0, gradients(0))
                time.sleep(0.005)
                aborting = threading.Thread(target=job[1].client.abort)
                aborting.start()
                with pytest.raises(ExchangeAborted):
                    push.result(5.0)
                job[1].client.follow(serving)
                while True:
                    is_last = not aborting.is_alive()
                    job[1].client.pull_rows(job[1].client._indices[1][0], torch.tensor([0]))
                    if is_last:
                        break


def test_an_abort_ends_a_wait_for_a_replica_that_hangs() -> None:
    with workers(2, SHARED, patience_s=30.0) as job:
        serving = job.serving(0, (0, 1))
        job[0].follow(serving)  # the replica has not heard of it, and does not come
        with ThreadPoolExecutor(1) as pool:
            push = pool.submit(job[0].client.push, 0, gradients(0))
            time.sleep(0.1)
            assert not push.done()
            job[0].client.abort()
            with pytest.raises(ExchangeAborted):
                push.result(1.0)


@WAYS
def test_an_abort_ends_a_wait_for_a_server_that_is_busy(options: WireOptions) -> None:
    goes_on = threading.Event()

    class Slow(Adam):
        def step(self, closure: Any = None) -> None:
            assert goes_on.wait(20.0)

    with workers(2, options, make=Slow) as job:
        job.follow(job.serving(0, (0, ALONE)))
        job[1].client.push(0, gradients(0))
        with ThreadPoolExecutor(1) as pool:
            pull = pool.submit(job[1].client.pull, 1, [entry(0, (1, 0, 1.0))])
            time.sleep(0.1)
            began_s = time.monotonic()
            job[1].client.abort()
            with pytest.raises(ExchangeAborted):
                pull.result(1.0)
            assert time.monotonic() - began_s < 1.0
        goes_on.set()
        assert job[1].serving is not None
        job[1].client.follow(job[1].serving)
        job[1].client.pull(1)


@pytest.mark.parametrize("own", [0, 1], ids=["near", "far"])
def test_who_closes_ends_what_another_thread_asks_for(own: int) -> None:
    with workers(2, SHARED) as job:
        serving = job.serving(0, (0, ALONE), (0, ALONE))
        job.follow(serving)
        client = job[own].client

        def train() -> None:
            for clock in range(10**6):
                client.follow(serving)
                client.push(
                    clock, gradients(0), entries=[entry(c, (own, c, 1.0)) for c in range(clock)]
                )

        with ThreadPoolExecutor(1) as pool:
            training = pool.submit(train)
            time.sleep(0.05)
            client.close()
            with pytest.raises(ExchangeAborted):
                training.result(5.0)
        with pytest.raises(ExchangeAborted):
            client.pull(0)


def test_who_is_late_or_early_to_follow() -> None:
    with workers(2, SHARED, patience_s=1.0) as job:
        job.follow(job.serving(0, (0, ALONE)))
        job[1].client.push(0, gradients(0))
        second = job.serving(1, (0, ALONE))
        job[0].follow(second)
        with pytest.raises(ServerLost, match="serving 0, and this is 1"):
            job[1].client.push(1, gradients(1))
        job[1].follow(second)
        job[1].client.push(1, gradients(1))
        third = job.serving(2, (0, ALONE))
        job[1].follow(third)
        later = threading.Timer(0.1, job[0].follow, [third])
        later.start()
        job[1].client.push(2, gradients(2))
        later.join()
        job[0].follow(second)  # an old one changes nothing
        job[1].client.push(3, gradients(3))


@WAYS
def test_a_connection_that_was_idle_for_long_is_made_anew(options: WireOptions) -> None:
    with workers(2, replace(options, timeout_s=0.2)) as job:
        job.follow(job.serving(0, (0, 1)))
        for clock in range(2):
            job[1].client.push(clock, gradients(clock))
            time.sleep(0.4)
        job[1].client.pull(1, [entry(0, (1, 0, 1.0))])


def test_many_teams_at_once() -> None:
    """Nobody waits for anybody: the order is that of the entries, and all get the same in the end."""
    teams, clocks = 5, 4
    with workers(teams, SHARED) as job:
        job.follow(job.serving(0, (0, 1), (1, 0)))
        entries: list[Any] = []
        order = threading.Lock()

        def train(team: int) -> None:
            client = job[team].client
            for clock in range(clocks):
                client.push(clock, gradients(100 * team + clock))
                with order:
                    entries.append(entry(len(entries), (team, clock, 0.5)))
                    known = list(entries)
                client.pull(len(known), known)

        with ThreadPoolExecutor(teams) as pool:
            for future in [pool.submit(train, team) for team in range(teams)]:
                future.result(30.0)
        reference = Reference()
        for one in entries:
            (part,) = one.parts
            reference.apply((0.5, gradients(100 * part.team + part.clock)))
        for worker in job:
            worker.client.pull(len(entries), entries)
            assert reference.is_equal(worker.parameters)


def test_who_joins_pulls_what_the_others_have_and_pushes() -> None:
    reference = Reference()
    with workers(3, SHARED) as job:
        job.follow(job.serving(0, (0, 1), (1, 0), lost=[2]))
        job[0].client.push(0, gradients(0))
        entries = [entry(0, (0, 0, 1.0))]
        job[1].client.pull(1, entries)
        job.follow(job.serving(1, (0, 1), (1, 2), applied=1))
        reference.apply((1.0, gradients(0)))
        job[2].client.pull(1, entries)
        assert reference.is_equal(job[2].parameters)
        wait_for(lambda: job[2].host.whole == (1,))
        job[2].client.push(0, gradients(5))
        entries.append(entry(1, (2, 0, 1.0)))
        reference.apply((1.0, gradients(5)))
        job[0].client.pull(2, entries)
        assert reference.is_equal(job[0].parameters)


def test_compensation_is_the_same_on_a_replica() -> None:
    with workers(3, SHARED, compensation=0.5, patience_s=0.4) as job:
        job.follow(job.serving(0, (0, 1)))
        for team in (0, 2):
            job[team].client.push(0, gradients(team))
        entries = [entry(0, (0, 0, 1.0)), entry(1, (2, 0, 1.0))]
        job[2].client.pull(1, entries[:1])
        job[0].client.pull(2, entries)
        wanted = [p.detach().clone() for p in job[0].parameters]
        job[2].client.push(1, gradients(7), entries=entries)
        entries.append(entry(2, (2, 1, 1.0)))
        job[0].client.pull(3, entries)
        wanted = [p.detach().clone() for p in job[0].parameters]
        job[2].client.push(2, gradients(8))
        job[0].die()
        job.follow(job.serving(1, (1, ALONE), lost=[0], applied=2))
        job[2].client.pull(3, entries)
        assert all(
            torch.equal(a, b.detach()) for a, b in zip(wanted, job[2].parameters, strict=True)
        )


def wait_for(is_so: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 5.0
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


@pytest.mark.parametrize(
    "options", [SHARED, pytest.param(TCP, marks=pytest.mark.slow)], ids=["shared", "tcp"]
)
def test_the_secret_of_one_run_reads_nothing_of_another(options: WireOptions) -> None:
    """It knows the address and all names; what it lacks is this run's secret."""
    with workers(2, options, patience_s=1.0, timeout_s=0.5) as job:
        job[1].doors.token = b"the secret of another run"
        with torch.no_grad():
            for parameter in job[1].parameters:
                parameter.zero_()
        job.follow(job.serving(0, (0, -1)))
        job[0].client.push(0, gradients(0))
        job[0].client.pull(1, [entry(0, (0, 0, 1.0))])
        with pytest.raises(ServerLost, match="worker 0 is not reached"):
            job[1].client.pull(0, ())
        assert not any(parameter.any() for parameter in job[1].parameters)
        job[0].client.push(1, gradients(1))  # and this run goes on
        job[0].client.pull(2, [entry(0, (0, 0, 1.0)), entry(1, (0, 1, 1.0))])
