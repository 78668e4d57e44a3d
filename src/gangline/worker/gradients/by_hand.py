# SPDX-License-Identifier: Apache-2.0
"""Loops that update the parameters themselves, without an optimizer or beside one.

Without one, and with one as soon as such an update is seen (a perturbation that is taken back, weights
that are shrunk or averaged), the parameters are part of the `Snapshot`: after a failed attempt at a
step they are as they were at its hand-out, whatever the loop did with them. So is the state of the
optimizers, as soon as the loop is seen to change it. An optimizer that was kept from `prepare` has
state that would not be put back, so it is noticed at its first step.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from gangline.spec.errors import UnsupportedError, UsageError
from gangline.worker.gradients import backward
from gangline.worker.gradients.layout import optimizer_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from gangline.worker.prepare.prepared import Prepared


class HandUpdates:
    """Whether a loop changes parameters or optimizer state in other ways than by optimizers' steps.

    Torch counts the changes of every tensor; those made through `.data` it does not see.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self._parameters = [p for model in models for p in model.parameters()]
        self._optimizers = optimizers
        self._versions, self._state_marks = self._now(), self._states_now()
        self.is_seen = not optimizers
        """Whether the parameters were."""
        self.is_state_seen = False
        """Whether optimizer state was."""

    def note(self) -> None:
        """What was changed up to now was changed by an optimizer, or before an epoch."""
        if not self.is_seen:
            self._versions = self._now()

    def look(self) -> None:
        """Notices what was changed of the parameters since the last `note`."""
        self.is_seen = self.is_seen or self._now() != self._versions

    def note_states(self) -> None:
        """What was changed of the optimizers' state up to now was changed by a step, or by us."""
        if not self.is_state_seen:
            self._state_marks = self._states_now()

    def look_at_states(self) -> None:
        """Notices what was changed of it since the last `note_states`."""
        self.is_state_seen = self.is_state_seen or self._states_now() != self._state_marks

    def _now(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    def _states_now(self) -> tuple[list[int], list[int]]:
        """Which objects the state holds, and how often its tensors were changed in place."""
        values = [
            value
            for optimizer in self._optimizers
            for state in optimizer.state.values()
            for value in (state.values() if isinstance(state, dict) else (state,))
        ]
        return [*map(id, values)], [one._version for one in values if type(one) is Tensor]


_STEP_IN_BACKWARD = (
    "the step() of a {} optimizer was called inside of backward(), as a hook does that was registered "
    "by register_post_accumulate_grad_hook: the gradient there is this worker's own, and that of the "
    "global batch is only known at the end of the pass. Call optimizer.step() after loss.backward()"
)


def refuse_other_optimizers(
    models: Sequence[nn.Module],
    prepared: Sequence[Optimizer],
    *,
    is_shared: Callable[[], bool],
    in_step: Callable[[], bool],
) -> RemovableHandle:
    """From now on an optimizer that was not prepared, and steps these models, raises.

    So does one, prepared or not, that steps them amid a backward pass. Until `remove()`. One that a
    prepared optimizer uses inside of its own step is that one's affair.
    """
    own = {id(parameter) for model in models for parameter in model.parameters()}

    def check(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        is_known = any(optimizer is one for one in prepared)
        is_early = is_shared() and backward.is_running()
        is_used_inside = in_step() and not is_known
        if is_used_inside or ((is_known or (prepared and not is_shared())) and not is_early):
            return
        if any(id(parameter) in own for parameter in optimizer_parameters(optimizer)):
            if is_early:
                raise UnsupportedError(_STEP_IN_BACKWARD.format(type(optimizer).__name__))
            raise UsageError(_describe_unknown(optimizer, prepared))

    return register_optimizer_step_pre_hook(check)


def _describe_unknown(optimizer: Optimizer, prepared: Sequence[Optimizer]) -> str:
    kind = type(optimizer).__name__
    held = (
        (one, name) for one in prepared for name, part in vars(one).items() if part is optimizer
    )
    for owner, name in held:
        around = type(owner).__name__
        return (
            f"the {kind} optimizer that the prepared {around} has as its {name} updates the prepared "
            f"model outside of {around}.step(), as SAM's second_step() does: prepare() does not know "
            "it, and its state would differ between workers. Give prepare() both: "
            f"gangline.prepare(model, optimizer, optimizer.{name}, loader)"
        )
    what = "it was not given" if prepared else "it was given none"
    return (
        f"a {kind} optimizer updates the prepared model, and prepare() does not know it ({what}): its "
        "state would differ between workers. Make all optimizers first, and call "
        "model, optimizer, loader = gangline.prepare(model, optimizer, loader)"
    )


def check_windows(prepared: Prepared, *, is_pulled: bool) -> None:
    """Refuses windows that the loop counts itself: nobody could see that they end."""
    if is_pulled:
        raise UnsupportedError(
            "no_sync() cannot go with parts that are pulled (allocation): each global batch is a "
            "window by itself, which is exchanged once. Leave no_sync() out"
        )
    if not prepared.optimizers:
        raise UnsupportedError(
            "no_sync() needs an optimizer, whose step() exchanges what was collected; without one use "
            "prepare(..., accumulate=k) and update where gangline.is_update() is true"
        )


@functools.cache
def warn_of_windows() -> None:
    """Says, once, that `no_sync` over several batches saves no exchange."""
    warnings.warn(
        "no_sync() spans several batches: what was added up is exchanged at the end of each of them, "
        "so that nothing is lost with a worker. prepare(…, accumulate=k) exchanges once for k batches",
        stacklevel=2,
    )
