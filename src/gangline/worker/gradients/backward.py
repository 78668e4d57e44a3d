# SPDX-License-Identifier: Apache-2.0
"""Finds the beginning and the end of every backward pass of the process.

`torch.autograd.backward` is the one door through which `Tensor.backward` goes. It is wrapped once,
with a depth counter, because a reentrant checkpoint calls it again from within. (The engine's own
end-of-backward callback fires in that inner pass, and sticks after an exception.)
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gangline.spec.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable


class BackwardListener(Protocol):
    """Who wants to know of backward passes."""

    def begin_backward(self, losses: Any, /) -> None: ...

    def end_backward(self) -> None: ...

    def fail_backward(self) -> None: ...


class _Door:
    """The wrapped function, and who listens at it."""

    def __init__(self) -> None:
        self.original: Callable[..., None] | None = None
        self.listener: BackwardListener | None = None
        self.depth = 0
        self.owner: threading.Thread | None = None
        self.losses: tuple[torch.Tensor, ...] = ()

    def open(self, listener: BackwardListener) -> None:
        if self.original is None:
            self.original = torch.autograd.backward
            torch.autograd.backward = self._wrap(self.original)
        self.listener = listener

    def close(self) -> None:
        if self.original is not None:
            torch.autograd.backward = self.original
        self.__init__()  # type: ignore[misc]

    def _wrap(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> None:
            listener = self.listener
            if listener is None:
                return original(*args, **kwargs)
            self._enter(listener, args[0] if args else kwargs.get("tensors", ()))
            try:
                original(*args, **kwargs)
            except BaseException:
                self._leave(listener.fail_backward)
                raise
            return self._leave(listener.end_backward)

        return backward

    def _enter(self, listener: BackwardListener, losses: Any) -> None:
        thread = threading.current_thread()
        if self.depth == 0:
            self.owner = thread
            self.losses = (losses,) if isinstance(losses, torch.Tensor) else tuple(losses)
            listener.begin_backward(losses)
        elif thread is not self.owner and not isinstance(thread, threading._DummyThread):
            # Threads of the autograd engine are unknown to Python, and are part of this pass.
            raise UnsupportedError(
                f"backward() was called by thread {thread.name!r} while thread "
                f"{self.owner.name if self.owner else '?'!r} is in a backward pass; gradients can "
                "be exchanged for one pass at a time: call backward() from one thread"
            )
        self.depth += 1

    def _leave(self, then: Callable[[], None]) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.owner = None
            try:
                then()
            finally:
                self.losses = ()


_door = _Door()


def listen(listener: BackwardListener) -> None:
    """From now on `listener` is told of every backward pass of this process."""
    _door.open(listener)


def stop_listening() -> None:
    """Puts torch's own function back."""
    _door.close()


def is_running() -> bool:
    """Whether a backward pass is under way."""
    return _door.depth > 0


def losses() -> tuple[torch.Tensor, ...]:
    """What the present backward pass goes back from."""
    return _door.losses


def has_closure(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an optimizer's `step` was given a closure, which will run its own backward pass."""
    given: list[Callable[..., Any] | None] = [*args[1:], kwargs.get("closure")]
    return any(callable(item) for item in given)


def after_closure(
    args: Any, kwargs: dict[str, Any], then: Callable[[], None]
) -> tuple[Any, dict[str, Any]]:
    """The same arguments of an optimizer's `step`; whenever it has called its closure, so is `then`."""

    def wrapped(item: Any) -> Any:
        if not callable(item):
            return item

        @functools.wraps(item)
        def closure() -> Any:
            loss = item()
            then()
            return loss

        return closure

    given = dict(kwargs)
    if "closure" in given:
        given["closure"] = wrapped(given["closure"])
    return (args[0], *map(wrapped, args[1:])), given
