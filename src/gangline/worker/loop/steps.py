# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps: each finds the gradient of the whole batch, or none where it must change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gangline.spec.errors import ExchangeError
from gangline.worker.gradients import backward
from gangline.worker.gradients.backward import after_closure, has_closure
from gangline.worker.gradients.by_hand import refuse_other_optimizers
from gangline.worker.loop.stepdoor import StepDoor
from gangline.worker.samples.weights import whole_of
from gangline.worker.sync.strategy import Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.worker.checks.guard import LayoutGuard
    from gangline.worker.gradients.layout import Unit
    from gangline.worker.loop.batches import BatchWalk
    from gangline.worker.loop.exchange import StepExchange
    from gangline.worker.loop.gear import Gear
    from gangline.worker.loop.progress import Progress
    from gangline.worker.loop.windows import PulledWindows


class OptimizerSteps:
    """Stands around every `step()` of the prepared optimizers.

    A `step` that must change nothing is not called at all, nor are its hooks: whatever an optimizer
    does beside using gradients would be done once too often. Where it cannot be left out it finds no
    gradients: with a closure, which must be run, and where a bound method is called that was kept from
    before `prepare`, of which only hooks tell.
    """

    def __init__(
        self,
        gear: Gear,
        progress: Progress,
        walk: BatchWalk,
        exchange: StepExchange,
        windows: PulledWindows,
        *,
        guard: LayoutGuard,
    ) -> None:
        self._gear = gear
        self._progress = progress
        self._walk = walk
        self._exchange = exchange
        self._windows = windows
        self._guard = guard
        self._gradients = gear.gradients
        self._is_in_step = False
        """Whether a prepared optimizer makes its step now."""
        self._is_surrounded = False
        """Whether it does so by the `step` that is ours, so that hooks have nothing to do."""
        self._hidden: list[torch.Tensor | None] | None = None
        """The gradients that the present step must not use."""
        self._gradients.takes_rows = self._takes_rows
        self._gradients.on_unit = self._take_unit
        optimizers = gear.prepared.optimizers
        self._doors = [StepDoor(optimizer, self._make_step) for optimizer in optimizers]
        self._handles = [
            handle
            for optimizer in optimizers
            for handle in (
                optimizer.register_step_pre_hook(self._on_begin),
                optimizer.register_step_post_hook(self._on_end),
            )
        ]
        self._handles.append(
            refuse_other_optimizers(
                gear.prepared.models,
                optimizers,
                is_shared=lambda: gear.session.client is not None,
                in_step=lambda: self._is_in_step,
            )
        )

    def _make_step(
        self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Somebody has called `optimizer.step(*args, **kwargs)`, which is `step`."""
        if self._is_surrounded or backward.is_running():  # the latter is refused
            return step(*args, **kwargs)
        self._is_surrounded, result = True, None
        try:
            given = self._before_step((optimizer, *args), kwargs)
            if given is not None:
                (_, *args), kwargs = given
            if self._hidden is not None:  # it is done again, was done before, or is not due
                optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers look at it
            else:
                result = self._update(optimizer, step, args, kwargs)
        except BaseException:
            self._show()
            raise
        finally:
            self._is_in_step = self._is_surrounded = False
        self._after_step()
        return result

    def _update(
        self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """The step is due: the optimizer makes it, or whoever makes the updates in its place."""
        handout, updater = self._gear.handout, self._gear.mode.strategy.updater
        if updater is None or handout is None or self._gear.is_passing_through:
            return step(*args, **kwargs)
        optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers look at it
        closure = next((one for one in (*args, *kwargs.values()) if callable(one)), None)
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
            if self._hidden is not None:  # it is not due after all
                return result
        clock, batch = self._gear.clock, self._gear.batches.present

        def step_here() -> None:
            step()
            clock.updated()

        clock.updated()  # so far it was the loop's own: it may have clipped gradients
        try:
            turn_s = updater.update(
                step_here,
                rows=self._gradients.rows(),
                window=Window(
                    epoch=handout.epoch,
                    stop=handout.window_stop,
                    samples=handout.total,
                    passes=self._gradients.num_exchanged,
                    weight=None if batch is None else whole_of(batch.weight),
                    step=handout.step,
                ),
            )
        except ExchangeError as error:
            self._exchange.lose(error)
            self._hidden = self._gradients.hide()
        else:
            clock.served(turn_s)
        return result

    def _takes_rows(self) -> bool:
        updater = self._gear.mode.strategy.updater
        return updater is not None and updater.takes_rows

    def _take_unit(self, unit: Unit) -> None:
        updater = self._gear.mode.strategy.updater
        if updater is not None:
            updater.take_unit(unit, which=self._gradients.num_exchanged)

    def _on_begin(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        return None if self._is_surrounded else self._before_step(args, kwargs)

    def _on_end(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any]) -> None:
        if not self._is_surrounded:
            self._after_step()

    def _before_step(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        self._is_in_step = True
        self._walk.leave_out()
        self._gear.snapshot.by_hand.look()
        if not has_closure(args, kwargs):  # else its pass tells
            self._windows.settle(self._gear.batches.present)
        handout, is_passing_through = self._gear.handout, self._gear.is_passing_through
        if is_passing_through or not self._gradients.num_exchanged:
            self._guard.check()  # else the backward pass did
        if handout is None or is_passing_through:
            return None
        self._gear.snapshot.by_hand.look_at_states()
        if has_closure(args, kwargs):  # its backward pass is still to come
            return after_closure(args, kwargs, self._hide_unless_due)
        is_open = not self._gradients.num_exchanged or self._gradients.has_kept
        if handout.is_update and not self._progress.is_void and is_open:
            self._exchange.make_local(handout)
        self._hide_unless_due()
        return None

    def _hide_unless_due(self) -> None:
        """An optimizer is about to use the gradients: it must find none, unless they are the step's."""
        handout = self._gear.handout
        if handout is None or not handout.is_update or self._gradients.is_replaying:
            self._hidden = self._gradients.hide()
            self._windows.note_step(handout)

    def _show(self) -> None:
        if self._hidden is not None:
            self._gradients.show(self._hidden)
        self._hidden = None

    def _after_step(self) -> None:
        gear = self._gear
        self._is_in_step = False
        gear.batches.count_step()
        gear.snapshot.forget_note()
        gear.snapshot.by_hand.note()
        if not gear.is_passing_through:
            gear.snapshot.by_hand.note_states()
        if self._hidden is not None:
            self._show()
            if self._gradients.is_replaying and not self._progress.is_void:
                gear.snapshot.restore_updates()
        elif gear.handout is not None and not gear.is_passing_through:
            self._progress.move(phase=self._gradients.num_exchanged)
            self._gradients.carried.commit()
            gear.snapshot.take_updates()
            gear.faults.reach("update", self._progress.position.step)
        gear.clock.updated()

    def close(self) -> None:
        """Takes the hooks off, and gives the optimizers their `step` back."""
        for handle in self._handles:
            handle.remove()
        for door in self._doors:
            door.close()
