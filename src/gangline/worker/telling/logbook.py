# SPDX-License-Identifier: Apache-2.0
"""What the script gives to `gangline.log`, until its step is made and the numbers are there.

A number on a GPU is not waited for in its step: it is read when a later step is over, by a queue of its
own, when it has long been computed. What was given in an attempt that counts nothing is forgotten.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from gangline.protocol.messages import MAX_LOGGED, MAX_LOGGED_NAME, Noted, is_logged_name
from gangline.spec.errors import UsageError
from gangline.spec.event import Logged
from gangline.worker.gradients.streams import Mark, SideStreams, mark
from gangline.worker.session import Session, now

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gangline.worker.samples.handout import Handout

_log = logging.getLogger("gangline.worker")


@dataclass(slots=True)
class _Pending:
    """A number that is still on its device."""

    tensor: torch.Tensor
    ready: Mark


_Value = float | _Pending


@dataclass(slots=True)
class _Step:
    """What was given in one step: for each of its parts how many samples, and the values."""

    step: int
    epoch: int
    view: int
    parts: dict[int, tuple[int, dict[str, _Value]]] = field(default_factory=dict)

    def names(self) -> set[str]:
        """What was given in all parts."""
        # Copies of each: another thread of the script may log at the same time.
        return set().union(*[set(values) for _, values in list(self.parts.values())])


class LogBook:
    """Keeps what a worker's script logs, and tells it of steps that were made."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._open: dict[int, _Step] = {}
        self._made: deque[_Step] = deque()
        """Steps that count, whose numbers may not be there yet."""
        self._streams = SideStreams()
        self._has_warned = False

    def note(self, values: Mapping[str, Any], handout: Handout, *, samples: int) -> None:
        """The script logs values in a batch, where they are means over so many samples."""
        taken = {name: _taken(name, value) for name, value in _checked(values).items()}
        if samples == 0:  # a ghost's loss says nothing
            return
        step = self._open.setdefault(handout.step, _Step(handout.step, handout.epoch, handout.view))
        _check_count(step.names() | taken.keys())
        step.parts.setdefault(handout.micro, (samples, {}))[1].update(taken)

    def note_between(self, values: Mapping[str, Any], *, step: int, epoch: int) -> None:
        """The script logs values outside of batches, after that step; every worker counts alike."""
        taken = {name: _taken(name, value) for name, value in _checked(values).items()}
        self._made.append(_Step(step, epoch, -1, {0: (1, taken)}))
        self._tell(0)

    def commit(self, step: int) -> None:
        """A step was made: what was logged in it counts, and what is there is told."""
        made = self._open.pop(step, None)
        if made is not None:
            self._made.append(made)
        if self._made:
            self._tell(1 if made is not None else 0)

    def discard(self, step: int) -> None:
        """The attempt at a step counts nothing: it is done again."""
        self._open.pop(step, None)

    def close(self) -> None:
        """Tells the rest; waits for the numbers."""
        self._tell(0)

    def _tell(self, num_young: int) -> None:
        """Tells the steps whose numbers are there; those of the last `num_young` are not waited for."""
        while self._made:
            if len(self._made) <= num_young and _is_pending(self._made[0]):
                return
            self._tell_step(self._made.popleft())

    def _tell_step(self, step: _Step) -> None:
        for samples, values in self._means(step).items():
            self._session.record(
                Logged(
                    t=now(),
                    worker=self._session.place.worker,
                    step=step.step,
                    epoch=step.epoch,
                    samples=samples,
                    values={k: one if math.isfinite(one) else None for k, one in values.items()},
                    view=step.view,
                )
            )
            if self._session.client is not None:
                self._session.client.send(
                    Noted(step=step.step, view=step.view, samples=samples, values=values)
                )

    def _means(self, step: _Step) -> dict[int, dict[str, float]]:
        """By how many samples they speak for: a script may log a value in some parts of a window."""
        sums: dict[str, tuple[int, float]] = {}
        for samples, values in step.parts.values():
            for name, value in values.items():
                number = self._read(name, value)
                if number is None:
                    continue
                count, total = sums.get(name, (0, 0.0))
                sums[name] = count + samples, total + samples * number
        means: dict[int, dict[str, float]] = {}
        for name, (count, total) in sums.items():
            means.setdefault(count, {})[name] = total / count
        return means

    def _read(self, name: str, value: _Value) -> float | None:
        """The number; None where it cannot be read, which must not end a training."""
        if isinstance(value, float):
            return value
        try:
            with self._streams.after(value.ready, value.tensor.device):
                return float(value.tensor)
        except Exception as error:  # what a device, or a class of tensors of its own, may raise
            if not self._has_warned:
                _log.warning(
                    "what was given to gangline.log(%s=…) cannot be read and is left out, as are "
                    "others like it: %s",
                    name,
                    error,
                )
            self._has_warned = True
            return None


def _is_pending(step: _Step) -> bool:
    return any(isinstance(one, _Pending) for _, own in step.parts.values() for one in own.values())


def _checked(values: Mapping[str, Any]) -> Mapping[str, Any]:
    if not values:
        raise UsageError("gangline.log() was given nothing: name what to log, as in log(loss=loss)")
    _check_count(values)
    for name in values:
        if not is_logged_name(name):
            raise UsageError(
                f"gangline.log() was given the name {name[:40]!r} of {len(name)} characters: a name "
                f"has 1 to {MAX_LOGGED_NAME} characters that can be printed"
            )
    return values


def _check_count(names: Collection[str]) -> None:
    if len(names) > MAX_LOGGED:
        raise UsageError(
            f"gangline.log() was given {len(names)} names in one step: it takes up to {MAX_LOGGED}, "
            "in all calls and parts of the step together"
        )


def _taken(name: str, value: Any) -> _Value:
    """The number in a value; one on another device is copied there, and read later."""
    if type(value) is float:
        return value
    if isinstance(value, torch.Tensor):
        if value.is_meta:
            raise UsageError(
                f"gangline.log({name}=…) was given a meta tensor, which has no number in it: give one "
                "that was computed"
            )
        if not value.is_cpu and value.numel() == 1 and not value.is_complex():
            # A copy: the script may add to its tensor before this one is read.
            tensor = value.detach().clone()
            return _Pending(tensor, mark(tensor.device))
        return _read_now(name, value)
    if isinstance(value, Real):
        return _as_float(name, value)
    raise UsageError(
        f"gangline.log({name}=…) takes a number, or a tensor with one number in it, not "
        f"{type(value).__name__}"
    )


def _as_float(name: str, value: Real) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise UsageError(
            f"gangline.log({name}=…) was given a number that is too large for a float: it takes up to "
            "1.8e308"
        ) from error


def _read_now(name: str, tensor: torch.Tensor) -> float:
    try:
        return float(tensor.item())
    except (RuntimeError, TypeError) as error:  # it has several numbers, or a complex one
        raise UsageError(
            f"gangline.log({name}=…) takes one number, and this tensor has the shape "
            f"{tuple(tensor.shape)} and the type {tensor.dtype}; give its mean: "
            f"log({name}={name}.mean())"
        ) from error
