# SPDX-License-Identifier: Apache-2.0
"""What `prepare` sets up: the prepared models, their exchange, and the steps they go through."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gangline.runtime.agreement import Agreed, Statement
from gangline.runtime.buffers import Buffers
from gangline.runtime.gradients import Gradients
from gangline.runtime.guard import LayoutGuard
from gangline.runtime.session import Session, now
from gangline.runtime.stepclock import StepClock, StepTimes
from gangline.spec import MismatchError, UsageError, View
from gangline.spec.event import EpochDone, PacingMeasured, StepDone, ViewAdopted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from gangline.collectives import Group
    from gangline.emulation.pacing import Pacer
    from gangline.runtime.handout import Handout
    from gangline.runtime.layout import Layout
    from gangline.runtime.metrics import MetricsProbe
    from gangline.runtime.views import Adoption, ViewSchedule
from gangline.runtime.messages import Measured


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The objects that the user gave to `prepare`."""

    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    stateful: Sequence[Any]


class Training:
    """Follows the user's loop: hand-out, backward passes, optimizer steps, the next hand-out."""

    def __init__(
        self,
        session: Session,
        prepared: Prepared,
        layout: Layout,
        *,
        views: ViewSchedule,
        pacer: Pacer | None,
        probe: MetricsProbe | None,
    ) -> None:
        self.session = session
        self.prepared = prepared
        self.views = views
        self.handout: Handout | None = None
        self.epoch = 0
        self._clock = StepClock()
        self._pacer = pacer
        self._probe = probe
        self._buffers = Buffers(prepared.models)
        self._gradients = Gradients(layout, self._buffers, session.communicator)
        self._guard = LayoutGuard(prepared.models, prepared.optimizers, layout)
        self._hidden: list[torch.Tensor | None] | None = None
        self._last_step = -1
        self._is_alone = session.group.size == 1
        self._handles = [
            handle
            for optimizer in prepared.optimizers
            for handle in (
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            )
        ]

    # --- the loader's side -----------------------------------------------------------------------

    def view_for(self, step: int) -> tuple[View, int]:
        view = self.views.cut(step)
        return view, view.rank_of(self.session.place.worker)

    def view_now(self) -> tuple[View, int]:
        """The view of the present batch, and this worker's rank in it."""
        view = self.views.newest if self.handout is None else self.views.at(self.handout.step)
        return view, view.rank_of(self.session.place.worker)

    def begin_epoch(self) -> int:
        epoch, self.epoch = self.epoch, self.epoch + 1
        self._clock.lap()
        return epoch

    def begin_batch(self) -> None:
        """The loop came back for more: the step before is over."""
        self._finish_step()
        self._clock.lap()

    def hand_out(self, handout: Handout, weight: float | Future[float]) -> None:
        self.handout = handout
        self._gradients.start(
            weight, is_update=handout.is_update, part=handout.share / handout.total
        )
        if self._pacer is not None:
            self._pacer.begin()
        if self._probe is not None:
            self._probe.begin()
        self._clock.handed_out()

    def total_weight(self, own: float) -> Future[float]:
        def add(group: Group) -> float:
            total = torch.tensor([own], dtype=torch.float64)
            group.all_reduce(total)
            return float(total)

        return self.session.communicator.submit(add)

    def end_epoch(self, epoch: int, samples: int) -> None:
        self.handout = None
        self._gradients.stop()
        self.session.record(
            EpochDone(
                t=now(),
                worker=self.session.place.worker,
                epoch=epoch,
                step=self._last_step + 1,
                samples=samples,
            )
        )
        self.report_pacing()

    # --- backward passes -------------------------------------------------------------------------

    @property
    def _is_passing_through(self) -> bool:
        """Alone and with nothing to weigh, autograd's own gradients are the result."""
        return self._is_alone and (self.handout is None or self.handout.num_micros == 1)

    def begin_backward(self) -> None:
        if not self._is_passing_through:
            self._guard.check()
            self._gradients.begin()

    def end_backward(self) -> None:
        if self._pacer is not None:
            self._pacer.settle()
        if self._probe is not None:
            self._probe.end()
        if self._is_passing_through:
            self._clock.computed()
            return
        if self.handout is None and self._gradients.has_fired:
            self._gradients.fail()
            raise UsageError(
                "backward() was called before the prepared loader handed out a batch: gangline "
                "weighs every gradient by the batch's share. Call backward() inside the loop "
                "over the loader that prepare() returned"
            )
        must_exchange = self._gradients.finish_local()
        self._clock.computed()
        if must_exchange and self.handout is not None:
            self._exchange(self.handout)

    def fail_backward(self) -> None:
        if not self._is_passing_through:
            self._gradients.fail()

    def no_sync(self) -> Any:
        """A context in which backward passes add up locally."""
        return self._gradients.paused()

    def _exchange(self, handout: Handout) -> None:
        agreed = self._gradients.exchange(
            Statement(
                view=handout.view,
                epoch=handout.epoch,
                step=handout.step,
                micro=handout.micro,
                phase=0,
                gradients=0,
                buffers=0,
                rates=self._rates_checksum(),
                newest_view=self.views.held,
                last_cut=self.views.last_cut,
            )
        )
        self._clock.exchanged()
        self._check_rates(agreed)
        self._adopt(agreed)

    def _adopt(self, agreed: Agreed) -> None:
        adoption = self.views.agree(agreed)
        if adoption is not None and self.session.group.rank == 0:
            self.record_view(adoption)

    def record_view(self, adoption: Adoption) -> None:
        """Writes down from which step on a view holds, and why."""
        view = adoption.view
        self.session.record(
            ViewAdopted(
                t=now(),
                view=view.number,
                step=adoption.step,
                members=list(view.members),
                shares=list(view.shares),
                reason=view.reason,
            )
        )

    def _rates_checksum(self) -> int:
        groups = [group for opt in self.prepared.optimizers for group in opt.param_groups]
        rates = [group["lr"] for group in groups if "lr" in group]
        return zlib.crc32(repr([float(rate) for rate in rates]).encode())

    def _check_rates(self, agreed: Agreed) -> None:
        if agreed.differ("rates"):
            raise MismatchError(
                f"the learning rates differ between workers at step {agreed.most.step}: a scheduler "
                "follows a value that each worker computes for itself. Give it the mean over all "
                "workers, e.g. scheduler.step(gangline.mean(loss, weight=num_samples))"
            )

    # --- optimizer steps -------------------------------------------------------------------------

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any]
    ) -> None:
        handout = self.handout
        self._guard.check()
        if handout is None or self._is_passing_through:
            return
        if not handout.is_update:
            self._hidden = self._gradients.hide()
        elif not self._gradients.has_exchanged and not _has_closure(args, kwargs):
            self._gradients.begin()
            self._gradients.finish_local(is_forced=True)
            self._exchange(handout)

    def _after_step(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any]
    ) -> None:
        if self._hidden is not None:
            self._gradients.show(self._hidden)
            self._hidden = None
        self._clock.updated()

    def _finish_step(self) -> None:
        handout = self.handout
        if handout is None or not handout.is_update:
            return
        times = self._clock.take()
        self._last_step = handout.step
        self._tell_coordinator(handout, times)
        self.session.record(
            StepDone(
                t=now(),
                worker=self.session.place.worker,
                step=handout.step,
                epoch=handout.epoch,
                view=handout.view,
                samples=handout.share,
                compute_s=times.compute_s,
                data_s=times.data_s,
                exchange_s=times.exchange_s,
                update_s=times.update_s,
            )
        )

    def _tell_coordinator(self, handout: Handout, times: StepTimes) -> None:
        client = self.session.client
        if client is None:
            return
        client.send(
            Measured(
                step=handout.step,
                view=handout.view,
                samples=handout.share,
                compute_s=times.compute_s,
            )
        )
        if self._probe is not None:
            metrics = self._probe.measure(
                samples=handout.share, compute_s=times.compute_s, latency_s=client.latency_s
            )
            if metrics is not None:
                client.send(metrics)

    # --- the end ---------------------------------------------------------------------------------

    def report_pacing(self) -> None:
        """Says how well the emulation hit the asked speed."""
        if self._pacer is not None:
            report = self._pacer.report()
            self.session.record(
                PacingMeasured(
                    t=now(),
                    worker=self.session.place.worker,
                    asked=report.asked,
                    achieved=report.achieved,
                    cpu_s=report.cpu_s,
                    slept_s=report.slept_s,
                )
            )

    def close(self) -> None:
        """Leaves the models and optimizers as if they had never been prepared."""
        for handle in self._handles:
            handle.remove()
        self._gradients.close()
        if self._pacer is not None:
            self._pacer.remove()


def _has_closure(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether `step` was given a closure, which will run its own backward pass."""
    given: list[Callable[..., Any] | None] = [*args[1:], kwargs.get("closure")]
    return any(callable(item) for item in given)
