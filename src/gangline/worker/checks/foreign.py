# SPDX-License-Identifier: Apache-2.0
"""Notices others that exchange the prepared models' gradients too: they would be exchanged twice.

There are four ways in which they come, each with a place where it can be seen:

- a wrapper around the model (DistributedDataParallel, FSDP, DeepSpeed) registers it as its child,
- an optimizer that exchanges (Horovod, DeepSpeed, ZeRO) makes a step,
- hooks on the parameters belong to such a library,
- a hook of anybody's own calls a collective of torch.distributed within a backward pass.

What shares no parameter with the prepared models is nobody's business.
"""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from gangline.spec.errors import UnsupportedError
from gangline.worker.gradients import backward
from gangline.worker.gradients.layout import optimizer_parameters
from gangline.worker.usercode import find_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gangline.worker.gradients.layout import Slot

_LIBRARIES = (
    "torch.nn.parallel.distributed",
    "torch.distributed.fsdp",
    "torch.distributed._composable",
    "torch.distributed.optim",
    "deepspeed.runtime",
    "horovod",
    "apex.parallel.distributed",
    "fairscale.nn.data_parallel",
    "fairscale.optim",
    "megatron.core.distributed",
    "bagua",
    "byteps",
    "colossalai",
    "hivemind",
    "smdistributed",
)
"""The modules of wrappers, optimizers and hooks that exchange gradients, or what becomes of them."""
_COLLECTIVES = ("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter")
_WHAT_TO_DO = (
    "gangline exchanges the gradients itself, so they would be exchanged twice. Leave it out. "
    "(accelerate and the Hugging Face Trainer put DistributedDataParallel on by themselves under "
    "torchrun: start the job with `gangline run`, under which they do not.)"
)


class ForeignExchange:
    """Watches, from `prepare` on, who else exchanges the gradients of these parameters."""

    def __init__(self, slots: Sequence[Slot], *, is_shared: Callable[[], bool]) -> None:
        """`is_shared` says whether the job has more than one worker: else nothing is wrong with it."""
        self._names = _Names(slots)
        self._parameters = [slot.parameter for slot in slots]
        self._is_shared = is_shared
        self._found = ""
        self._called = ""
        self._next_hook = -1
        self._handles = [
            register_module_module_registration_hook(self._on_child),
            register_optimizer_step_pre_hook(self._on_step),
        ]
        self._collectives = _CollectiveWatch(self._on_collective)

    def check(self) -> None:
        """Raises if somebody else exchanges these parameters' gradients."""
        self._called = ""
        if RemovableHandle.next_id != self._next_hook:  # a hook was put on something since
            self._next_hook = RemovableHandle.next_id
            for parameter in self._parameters:
                self._find_hooks(parameter)
        self._complain()

    def check_pass(self, has_fired: Callable[[], bool]) -> None:
        """A backward pass is over. Raises if a collective was called in it, and it was one of ours."""
        if self._called and self._is_shared() and has_fired():
            raise UnsupportedError(
                f"{self._called} within a backward pass of the prepared model, as a hook that "
                f"exchanges gradients does: {_WHAT_TO_DO}"
            )

    def close(self) -> None:
        """Watches no longer; torch is as it was."""
        for handle in self._handles:
            handle.remove()
        self._collectives.close()

    def _complain(self) -> None:
        if self._found and self._is_shared():
            raise UnsupportedError(f"{self._found}: {_WHAT_TO_DO}")

    # --- what is seen ----------------------------------------------------------------------------

    def _on_child(self, module: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is not None and library_of(type(module)):
            self._found = _describe_wrapper(module, [child], self._names) or self._found
            self._complain()

    def _on_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if library_of(type(optimizer)):
            name = self._names.find(optimizer_parameters(optimizer))
            if name is not None:
                self._found = (
                    f"an optimizer of {library_of(type(optimizer))} ({type(optimizer).__name__}) "
                    f"updates the prepared parameter {name!r}"
                )
                self._complain()

    def _on_collective(self, name: str) -> None:
        if backward.is_running():
            self._called = f"torch.distributed's {name} was called ({find_caller().place})"

    def _find_hooks(self, parameter: torch.Tensor) -> None:
        for hook in [*(parameter._backward_hooks or {}).values(), *_post_hooks(parameter).values()]:
            library = _library_of_function(hook)
            if library:
                name = self._names.find([parameter])
                self._found = f"a hook of {library} was put on the prepared parameter {name!r}"


class _Names:
    """The names of the prepared parameters."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._names = {id(slot.parameter): slot.name for slot in slots}

    def find(self, parameters: Iterable[torch.Tensor]) -> str | None:
        """The name of the first of them that was prepared."""
        return next((self._names[id(one)] for one in parameters if id(one) in self._names), None)


def check_unwrapped(slots: Sequence[Slot]) -> None:
    """Refuses parameters around which a wrapper was put before `prepare` was given what is inside."""
    names = _Names(slots)
    for one in gc.get_objects():
        if issubclass(type(one), nn.Module) and library_of(type(one)):
            found = _describe_wrapper(one, one.children(), names)
            if found:
                raise UnsupportedError(f"{found}: {_WHAT_TO_DO}")


def _describe_wrapper(wrapper: nn.Module, children: Iterable[nn.Module], names: _Names) -> str:
    """That it is around a prepared parameter; empty if it is not."""
    name = names.find(one for child in children for one in child.parameters())
    if name is None:
        return ""
    kind = type(wrapper)
    return f"{kind.__name__} ({library_of(kind)}) was put around the prepared parameter {name!r}"


class _CollectiveWatch:
    """Tells of every sum over a process group of torch's that Python code asks for."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._originals: dict[str, Any] = {}
        if not torch.distributed.is_available():
            return
        for name in _COLLECTIVES:
            original = getattr(torch.distributed.ProcessGroup, name)
            self._originals[name] = original
            setattr(torch.distributed.ProcessGroup, name, self._wrap(name, original, tell))

    @staticmethod
    def _wrap(name: str, original: Any, tell: Callable[[str], None]) -> Any:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            tell(name)
            return original(*args, **kwargs)

        return watched

    def close(self) -> None:
        for name, original in self._originals.items():
            setattr(torch.distributed.ProcessGroup, name, original)


def _post_hooks(parameter: torch.Tensor) -> dict[int, Any]:
    return parameter._post_accumulate_grad_hooks or {}


def library_of(kind: type) -> str:
    """The library that a class, or one that it is made from, exchanges gradients by; empty if none."""
    return next((one for base in kind.__mro__ if (one := _match(base.__module__))), "")


def _library_of_function(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    if owner is not None and library_of(type(owner)):
        return library_of(type(owner))
    return _match(getattr(function, "__module__", None) or "")


def _match(module: str) -> str:
    return next((one for one in _LIBRARIES if module == one or module.startswith(f"{one}.")), "")
