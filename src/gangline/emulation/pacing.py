# SPDX-License-Identifier: Apache-2.0
"""Makes a worker as slow as an emulated node: it sleeps in proportion to the CPU time it computes.

With speed s, each second of CPU time is followed by 1/s − 1 seconds of sleep, in small portions
while the forward and backward passes go on, so that the emulated nodes do not all compute at one
instant.

    pacer = pace(model, 0.25)           # before the exchange registers its hooks
    for x, y in loader:
        pacer.begin()                   # what came before (data loading) is not computing
        loss_fn(model(x), y).backward()
        pacer.settle()                  # pays the rest; not needed after the first step

The portions are slept in hooks: when a parameter's gradient is there, and when a module's forward
is done. The latter is one hook for the whole process, filtered, not one on each module: those would
travel with `deepcopy` and `torch.save`. With the last gradient, as many as the step before had, a
step is settled. Works for any model, also one inside DDP; not for a GPU, whose work takes no CPU
time.

A slow node is not a noisy one. A millisecond that this machine loses to a cold cache or to a neighbour
would be ten on a node of a tenth of its speed. So steps of one size sleep what such steps usually owe,
and what a single one owed more or less is spread over those that follow.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import torch
from torch.nn.modules.module import register_module_forward_hook

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle

_QUANTUM_S = 0.0005
"""A debt below this is carried on: shorter sleeps would mostly be overhead."""
_SLEEPS_PER_STEP = 2
"""Sleeps are spread over a step, or all workers would compute at one instant; but a core that is woken
computes slower for a while (with twenty sleeps a step cost two to three times the CPU time)."""
_CREDIT_S = 0.1
"""How much sleeping too long counts for later: a busy machine wakes sleepers late, and that must not
make the worker slower than asked. Beyond it the machine was suspended, and nothing is owed."""


_USUAL_STEPS = 8
"""Over how many steps of one size the usual debt is averaged, and an unusual one is spread."""
_UNUSUAL = 0.5
"""A step whose debt differs from the usual by more than this fraction is another kind of step."""
_MAX_SIZES = 64


class PacingReport(NamedTuple):
    """How well the asked speed was hit."""

    asked: float
    achieved: float
    cpu_s: float
    slept_s: float


class _Usual(NamedTuple):
    """What steps of one size owe."""

    mean_s: float
    num_steps: int

    def after(self, owed_s: float) -> _Usual:
        num_steps = min(self.num_steps + 1, _USUAL_STEPS)
        return _Usual(self.mean_s + (owed_s - self.mean_s) / num_steps, num_steps)


def sleep_measured(duration_s: float) -> float:
    """Sleeps, and returns how long it really took: the kernel always sleeps a little longer."""
    before = time.perf_counter()
    time.sleep(duration_s)
    return time.perf_counter() - before


class Pacer:
    """The debt of one worker: what it computed, slept, and still has to sleep."""

    def __init__(
        self,
        speed: float,
        *,
        clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], float] = sleep_measured,
    ) -> None:
        self._speed = _checked(speed)
        self._clock = clock
        self._sleep = sleep
        self._handles: list[RemovableHandle] = []
        self._is_computing = False
        self._mark_s = 0.0
        self._mark_thread = 0
        self._debt_s = 0.0
        self._step_debt_s = 0.0
        self._quantum_s = _QUANTUM_S
        self._size: int | None = None
        self._num_gradients = 0
        self._last_gradient = 0
        self._is_settled = False
        self._usual: dict[int | None, _Usual] = {}
        self._spread_s = 0.0
        self._cpu_s = 0.0
        self._slept_s = 0.0

    def begin(self, size: int | None = None) -> None:
        """The computing of a step starts here: CPU time before this is not paced.

        Steps of one `size`, the number of samples, cost about the same.
        """
        self._size = size
        self._is_settled = False
        self._num_gradients, self._last_gradient = 0, self._num_gradients
        self._quantum_s = max(_QUANTUM_S, self._step_debt_s / _SLEEPS_PER_STEP)
        self._step_debt_s = 0.0
        self._is_computing = True
        self._mark()

    def pause(self) -> None:
        """What follows, until `resume`, is not computing."""
        if self._is_computing:
            self._charge()

    def resume(self) -> None:
        """Computing goes on."""
        self._mark()

    def settle(self) -> None:
        """Pays what is left, however little: after this, the step was as slow as it had to be.

        A step may settle several times (a GAN, several losses): what it computes after one
        settlement is due at the next.
        """
        if self._is_computing:
            self._charge()
            if not self._is_settled:
                self._is_settled = True
                self._smooth()
            self._pay(at_least_s=0.0)
            if abs(self._debt_s) <= self._step_debt_s / _USUAL_STEPS:
                self._spread_s += self._debt_s
                self._debt_s = 0.0

    def set_speed(self, speed: float) -> None:
        """Runs at another speed from here on: the emulated node is throttled, or recovers."""
        self._speed = _checked(speed)
        self._usual.clear()
        self._spread_s = 0.0

    def report(self) -> PacingReport:
        """What was asked for and what came of it so far."""
        total_s = self._cpu_s + self._slept_s
        achieved = self._cpu_s / total_s if total_s > 0 else self._speed
        return PacingReport(self._speed, achieved, self._cpu_s, self._slept_s)

    def remove(self) -> None:
        """Takes all hooks away; the models are as they were."""
        self._is_computing = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def attach(self, models: Iterable[nn.Module]) -> None:
        """Puts the hooks on the models' parameters and into the process."""
        modules = WeakSet(module for model in models for module in model.modules())
        self._handles = [self._hook_parameter(parameter) for parameter in _parameters_of(modules)]

        def on_forward(module: nn.Module, inputs: Any, output: Any) -> None:
            # Inside a compiled graph there is no time between two modules.
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return
            if module in modules:
                self._on_progress()

        # torch warns that a compiled model calls the hook once more than it has modules.
        warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when")
        self._handles.append(register_module_forward_hook(on_forward))

    def _hook_parameter(self, parameter: Tensor) -> RemovableHandle:
        def on_gradient(_: Tensor) -> None:
            self._num_gradients += 1
            if self._num_gradients == self._last_gradient:
                # Before whoever sends this one; nobody else may know when a step has computed.
                self.settle()
            else:
                self._on_progress()

        # torch refuses hooks on a frozen parameter, which may be unfrozen later.
        needs_grad = parameter.requires_grad
        parameter.requires_grad_(True)
        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            on_gradient
        )
        parameter.requires_grad_(needs_grad)
        return handle

    def _smooth(self) -> None:
        """Makes the step owe the usual, and its difference a debt of the steps to come."""
        owed_s, usual = self._step_debt_s, self._usual.get(self._size)
        if usual is None or abs(owed_s - usual.mean_s) > _UNUSUAL * usual.mean_s:
            if len(self._usual) >= _MAX_SIZES:
                self._usual.clear()
            self._usual[self._size] = _Usual(owed_s, 1)
            return
        self._spread_s += owed_s - usual.mean_s
        repaid_s = self._spread_s / _USUAL_STEPS
        self._spread_s -= repaid_s
        self._debt_s += usual.mean_s - owed_s + repaid_s
        self._usual[self._size] = usual.after(owed_s)

    def _on_progress(self) -> None:
        if self._is_computing:
            self._charge()
            self._pay(at_least_s=self._quantum_s)

    def _mark(self) -> None:
        self._mark_s = self._clock()
        self._mark_thread = threading.get_ident()

    def _charge(self) -> None:
        """Books the CPU time since the last mark, where it is this thread's time at all."""
        if threading.get_ident() == self._mark_thread:
            used_s = self._clock() - self._mark_s
            self._cpu_s += used_s
            debt_s = used_s * (1 / self._speed - 1)
            self._debt_s += debt_s
            self._step_debt_s += debt_s
        self._mark()

    def _pay(self, *, at_least_s: float) -> None:
        if self._debt_s <= at_least_s:
            return
        slept_s = self._sleep(self._debt_s)
        self._slept_s += slept_s
        self._debt_s = max(self._debt_s - slept_s, -_CREDIT_S)
        self._mark()


def pace(
    model: nn.Module | Iterable[nn.Module],
    speed: float,
    *,
    clock: Callable[[], float] = time.thread_time,
    sleep: Callable[[float], float] = sleep_measured,
) -> Pacer:
    """Makes a model, or the several models of one training loop, run at a fraction of their speed.

    Hooks on a parameter run in the order of their registration: call this before anything that
    sends gradients registers its own. Several models of one loop need one pacer, not one each, or
    the same CPU time would be paid twice. `sleep` returns how long it really slept.
    """
    pacer = Pacer(speed, clock=clock, sleep=sleep)
    pacer.attach([model] if isinstance(model, torch.nn.Module) else list(model))
    return pacer


def _checked(speed: float) -> float:
    if not (math.isfinite(speed) and 0 < speed <= 1):
        raise UsageError(
            f"a pacing speed is a fraction of this machine's speed, above 0 and at most 1, "
            f"not {speed!r}"
        )
    return speed


def _parameters_of(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    seen: set[int] = set()
    for module in modules:
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
