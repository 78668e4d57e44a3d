# SPDX-License-Identifier: Apache-2.0
"""Training by pipelines: one step after the other, each made by all workers or by none.

A step is an attempt in three parts. Stages compute the micro-batches; those that hold the same layers
sum their gradients; and when everybody has come so far, all make the step. If somebody is lost before,
the attempt is void. If somebody is lost while all are told, some may know and others not: then whoever
has not made the step has all that it needs, and makes it when they meet again.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gangline.pipelining.crew import Crew, time_link
from gangline.pipelining.meeting import agree, find_each_other, meet
from gangline.pipelining.noting import met
from gangline.pipelining.samples import pieces_of
from gangline.pipelining.stage import StageWork, overwrite
from gangline.pipelining.standing import Standing, furthest, holdings_of, moves_for, ties_of
from gangline.pipelining.summing import mean_buffers, sum_gradients
from gangline.planning.pipelines.schedules import BACKWARD, FORWARD, tasks_of
from gangline.spec.errors import ExchangeError
from gangline.spec.event import StepDone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.pipelining.chain import ChainLayer
    from gangline.pipelining.holding import Holdings
    from gangline.pipelining.measuring import Measured
    from gangline.pipelining.meeting import Planner
    from gangline.pipelining.samples import Samples
    from gangline.pipelining.stage import Piece
    from gangline.spec.pipelines import Layout, Machine, Pipeline
    from gangline.worker.faults import Faults
    from gangline.worker.session import Session


PIPEDREAM = "pipedream"


class Gear:
    """What a training works with; nothing of it changes."""

    def __init__(
        self,
        *,
        session: Session,
        chain: Sequence[ChainLayer],
        holdings: Holdings,
        measured: Measured,
        machine: Machine,
        samples: Samples,
        planner: Planner,
        loss: Callable[[Tensor, Any], Tensor],
        is_mean: bool,
        schedule: str,
        seed: int,
        checksum: int,
        device: torch.device,
        faults: Faults,
    ) -> None:
        self.session, self.chain, self.holdings = session, chain, holdings
        self.measured, self.machine, self.samples = measured, machine, samples
        self.planner, self.loss, self.is_mean = planner, loss, is_mean
        self.schedule, self.seed, self.checksum = schedule, seed, checksum
        self.device, self.faults = device, faults


class Training:
    """This worker's part."""

    def __init__(self, gear: Gear) -> None:
        self._gear = gear
        self.position = 0
        """Steps that were made."""
        self.layout: Layout | None = None
        self._crew: Crew | None = None
        self._stage: StageWork | None = None
        self._recompute: list[bool] = []
        self._is_prepared = False
        self._loss = 0.0
        self._view = -1
        self._later: list[tuple[Tensor, Tensor]] = []
        """Buffers, and what they are to be when the step is made."""
        self._before: list[tuple[Tensor, Tensor]] = []
        """Buffers, and what they were before the attempt."""
        self._snapshot: dict[int, Any] = {}
        """With `pipedream`: all that is held, as it was before the attempt."""
        self._handed: dict[int, Any] = {}
        """With `pipedream`: copies, as they are to be when the step is made."""
        self._link: tuple[float, float] | None = None
        self._reason = "the workers of the job have met"

    @property
    def epoch(self) -> int:
        """The epoch of the next step."""
        return self.position // self._gear.samples.steps_per_epoch

    def step(self) -> float:
        """Makes one step, whatever happens to others meanwhile; its loss, over the whole batch."""
        aim = self.position + 1
        while self.position < aim:
            self._try(self._attempt)
        return self._loss

    def together(self, call: Callable[[], Any]) -> Any:
        """Makes a call that all workers make between steps, again if somebody is lost meanwhile."""
        found: list[Any] = []
        while not found:
            self._try(lambda: found.append(call()))
        return found[0]

    def close(self) -> None:
        """Ends what goes on between the workers."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def _try(self, attempt: Callable[[], None]) -> None:
        try:
            aim = self.position
            if self._crew is None:
                self._assemble()
            if self.position == aim:
                attempt()
        except ExchangeError as error:
            self._reason = str(error)
            self._gear.faults.reach("regroup", self.position)
            self.close()
            find_each_other(self._gear.session, error)

    # Finding each other

    def _assemble(self) -> None:
        """Meets the others, comes to where they are, and takes its place in the layout."""
        begun, gear = time.perf_counter(), self._gear
        session, holdings = gear.session, gear.holdings
        if self._link is None:
            self._link = session.communicator.call(time_link)
        standings, layout, self._recompute = meet(session, gear.planner, self._tell)
        self._view = 1 + max(one.view for one in standings)
        self._catch_up(furthest(standings))
        names = [layer.name for layer in gear.measured.layers]
        moves = moves_for(layout, standings, names)
        own = holdings_of(layout).get(gear.machine.name, set())
        holdings.take(own)
        if len(standings) > 1:
            self._crew = Crew(session, standings, name=f"pipeline/{standings[0].nonce}")
            self._crew.move(moves, holdings)
            ties = ties_of(layout, len(names))
            self._crew.connect(self._pipeline_of(layout), ties)
            agree(session, torch.zeros(1))
        holdings.keep(own)
        self.layout, self._stage = layout, self._work_of(layout)
        for event in met(
            standings,
            layout,
            worker=session.place.worker,
            view=self._view,
            step=self.position,
            took_s=time.perf_counter() - begun,
            reason=self._reason,
        ):
            session.record(event)

    def _tell(self) -> Standing:
        gear = self._gear
        assert self._link is not None
        door = gear.session.door
        return Standing(
            worker=gear.session.place.worker,
            address=None if door is None else door.address,
            asked=gear.checksum,
            position=self.position,
            is_prepared=self._is_prepared,
            loss=self._loss,
            held=sorted(gear.holdings.held),
            machine=gear.machine,
            link_s=self._link[0],
            bytes_per_s=self._link[1],
            view=self._view,
            nonce=secrets.token_hex(8),
        )

    def _catch_up(self, ahead: Standing) -> None:
        """Makes the step that somebody has made already, or forgets the attempt."""
        if ahead.position > self.position:
            assert self._is_prepared
            assert ahead.position == self.position + 1
            self._make_step(ahead.loss)
        else:
            self._void()

    def _void(self) -> None:
        """Everything is as it was before the attempt."""
        self._is_prepared = False
        self._gear.holdings.drop_gradients()
        if self._stage is not None:
            self._stage.forget()
        overwrite(self._before)
        self._gear.holdings.put_back(self._snapshot)
        self._clear()

    def _clear(self) -> None:
        self._before, self._later, self._snapshot, self._handed = [], [], {}, {}

    def _pipeline_of(self, layout: Layout) -> Pipeline | None:
        name = self._gear.machine.name
        return next((one for one in layout.pipelines if name in one.machines), None)

    def _work_of(self, layout: Layout) -> StageWork | None:
        gear, pipeline = self._gear, self._pipeline_of(layout)
        if pipeline is None:
            return None
        stage = pipeline.stages[pipeline.machines.index(gear.machine.name)]
        return StageWork(
            [(index, gear.chain[index]) for index in range(stage.start, stage.stop)],
            gear.measured.shapes,
            device=gear.device,
            loss=gear.loss if stage.stop == len(gear.chain) else None,
            recompute=self._recompute[layout.pipelines.index(pipeline)],
            stashes=gear.schedule == PIPEDREAM,
            seed=gear.seed,
            speed=gear.session.place.speed,
        )

    # One step

    def _attempt(self) -> None:
        gear, step = self._gear, self.position
        begun = time.perf_counter()
        gear.faults.reach("forward", step)
        self._before = [
            (b, b.clone())
            for index in gear.holdings.held
            for b in gear.holdings.buffers(index).values()
        ]
        if gear.schedule == PIPEDREAM:
            self._snapshot = gear.holdings.snapshot()
        pieces, weight = self._own_pieces(step)
        self._compute(pieces)
        computed = time.perf_counter()
        gear.faults.reach("exchange", step)
        self._exchange(weight)
        self._is_prepared = True
        gear.faults.reach("part", step)
        own = torch.zeros(1, dtype=torch.float64) if self._stage is None else self._stage.total_loss
        loss = agree(gear.session, own.reshape(1))
        exchanged = time.perf_counter()
        gear.faults.reach("call", step)
        self._make_step(float(loss))
        self._note(step, computed - begun, exchanged - computed, time.perf_counter() - exchanged)
        gear.faults.reach("between", step)

    def _own_pieces(self, step: int) -> tuple[list[Piece], float]:
        """This worker's micro-batches, and its pipeline's part of the batch."""
        assert self.layout is not None
        pipeline = self._pipeline_of(self.layout)
        if pipeline is None:
            return [], 0.0
        start, stop = bounds = self._gear.samples.bounds(step)
        pieces = pieces_of(
            step,
            bounds,
            [one.share for one in self.layout.pipelines],
            [one.micro_batches for one in self.layout.pipelines],
            is_mean=self._gear.is_mean,
            is_each=self._gear.schedule == PIPEDREAM,
        )[self.layout.pipelines.index(pipeline)]
        return pieces, sum(one.stop - one.start for one in pieces) / (stop - start)

    def _compute(self, pieces: Sequence[Piece]) -> None:
        if self._stage is None or not pieces:
            return
        assert self.layout is not None
        pipeline = self._pipeline_of(self.layout)
        assert pipeline is not None
        order = tasks_of(
            self._gear.schedule,
            stage=pipeline.machines.index(self._gear.machine.name),
            stages=len(pipeline.stages),
            micro_batches=len(pieces),
        )
        for kind, number in order:
            if kind == FORWARD:
                self._forward(pieces[number])
            elif kind == BACKWARD:
                self._backward(pieces[number])
            elif number >= 0:
                self._stage.hand_over(pieces[number])
                self._gear.holdings.step()

    def _forward(self, piece: Piece) -> None:
        assert self._stage is not None
        crew, samples = self._crew, self._gear.samples
        source = None if crew is None else crew.before_in
        target = None if crew is None else crew.after_out
        x, y = (None, None)
        if source is None or target is None:
            x, y = samples.fetch(self.epoch, piece.start, piece.stop)
        if source is not None:
            x = source.take(piece.step, piece.number)
        assert x is not None
        out = self._stage.forward(piece, x, y)
        if target is not None and out is not None:
            target.put(piece.step, piece.number, out)

    def _backward(self, piece: Piece) -> None:
        assert self._stage is not None
        crew = self._crew
        source = None if crew is None else crew.after_in
        target = None if crew is None else crew.before_out
        gradient = None if source is None else source.take(piece.step, piece.number)
        self._gear.faults.reach("backward", piece.step)
        sent = self._stage.backward(piece, gradient)
        if target is not None:
            assert sent is not None
            target.put(piece.step, piece.number, sent)

    def _exchange(self, weight: float) -> None:
        if self._crew is None:
            return
        if self._gear.schedule == PIPEDREAM:
            self._handed = self._crew.hand_on(self._gear.holdings)
            return
        name, later = self._gear.machine.name, []
        for tie, group in self._crew.ties:
            is_computing = name in tie.computing
            sum_gradients(group, self._gear.holdings, tie.layers, is_computing=is_computing)
            later += mean_buffers(
                group,
                self._gear.holdings,
                tie.layers,
                weight=weight if is_computing else 0.0,
                is_first=name == tie.computing[0],
            )
        self._later = later

    def _make_step(self, loss: float) -> None:
        overwrite(self._later)
        self._gear.holdings.put_back(self._handed)
        self._clear()
        if self._gear.schedule != PIPEDREAM:
            self._gear.holdings.step()
        if self._stage is not None:
            self._stage.forget()
        self._is_prepared = False
        self._loss = loss
        self.position += 1
        self._gear.faults.reach("update", self.position - 1)

    # The log

    def _note(self, step: int, compute_s: float, exchange_s: float, update_s: float) -> None:
        gear, crew = self._gear, self._crew
        start, stop = gear.samples.bounds(step)
        is_first = self._stage is not None and (crew is None or crew.before_in is None)
        pieces, _ = self._own_pieces(step)
        busy_s = 0.0 if self._stage is None else self._stage.busy_s
        if self._stage is not None:
            self._stage.busy_s = 0.0
        gear.session.record(
            StepDone(
                t=time.time(),
                worker=gear.session.place.worker,
                step=step,
                epoch=step // gear.samples.steps_per_epoch,
                view=self._view,
                samples=sum(one.stop - one.start for one in pieces) if is_first else 0,
                start=start,
                stop=stop,
                compute_s=busy_s,
                data_s=0.0,
                exchange_s=exchange_s + max(0.0, compute_s - busy_s),
                update_s=update_s,
            )
        )
