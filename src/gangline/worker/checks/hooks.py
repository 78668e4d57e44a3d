# SPDX-License-Identifier: Apache-2.0
"""Warns, once, of hooks that change gradients before these are those of the whole batch.

A hook in a backward pass sees the gradient of this worker's own samples. Where it scales by a constant
or masks, the sum over the workers is what one process would have made. Where it does anything else, as
clipping and noise do, the result depends on the shares. What a hook on a parameter or an activation
does is seen when it is called. A hook of a module is not touched, as it is copied and saved with its
model: its code tells whether it can return a gradient at all.
"""

from __future__ import annotations

import dis
import functools
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from gangline.worker.usercode import find_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from gangline.worker.gradients.layout import Slot

_WHY = (
    "is given the gradient of this worker's own samples, not that of the whole batch. If it does more "
    "than scale it by a constant or mask it, as clipping and noise do, the result depends on the "
    "shares and is not that of one process. Then change the gradients between backward() and step() "
    "instead, where they are those of the whole batch"
)
Hooks = dict[int, Any]
"""Hooks by the number of their handle."""


class GradientHooks:
    """Looks for hooks of the user's own on parameters, activations and modules."""

    def __init__(
        self, models: Sequence[nn.Module], slots: Sequence[Slot], *, is_shared: Callable[[], bool]
    ) -> None:
        """`is_shared` says whether the job has more than one worker: else a hook sees all there is."""
        self._models = models
        self._slots = slots
        self._is_shared = is_shared
        self._next_hook = -1
        self._was_shared = False
        self._has_warned = False
        self._replaced: list[tuple[Hooks, int, Any, Any]] = []
        """The hooks in whose place others are that watch them."""
        self._register_hook = torch.Tensor.register_hook
        torch.Tensor.register_hook = self._watch_activations()  # type: ignore[method-assign]

    def look(self) -> None:
        """Finds hooks that were put on something since the last time."""
        if RemovableHandle.next_id == self._next_hook and self._is_shared() == self._was_shared:
            return
        self._next_hook, self._was_shared = RemovableHandle.next_id, self._is_shared()
        self._replaced = [one for one in self._replaced if one[0].get(one[1]) is one[2]]
        for slot in self._slots:
            self._watch(slot.parameter._backward_hooks or {}, slot.name, self._watch_fresh)
            self._watch(
                slot.parameter._post_accumulate_grad_hooks or {}, slot.name, self._watch_added
            )
        for where, kind, hook in self._module_hooks():
            if not (_is_of(hook, "torch", "gangline") or _returns_nothing(hook)):
                self._note(f"the hook {_describe(hook)} of {where} ({kind})")

    def close(self) -> None:
        """Puts the hooks back that were replaced, and torch's own function."""
        torch.Tensor.register_hook = self._register_hook  # type: ignore[method-assign]
        for hooks, number, watched, hook in self._replaced:
            if hooks.get(number) is watched:
                hooks[number] = hook

    def _note(self, found: str) -> None:
        if self._has_warned or not self._is_shared():
            return
        self._has_warned = True
        warnings.warn(f"{found} {_WHY}", UserWarning, stacklevel=find_caller().depth)

    # --- activations -----------------------------------------------------------------------------

    def _watch_activations(self) -> Callable[[Tensor, Any], Any]:
        """`Tensor.register_hook`, by which hooks of tensors that have a history are watched."""
        original: Callable[[Tensor, Any], Any] = self._register_hook

        @functools.wraps(original)
        def register_hook(tensor: Tensor, hook: Any) -> Any:
            if tensor.grad_fn is not None and not _is_of(hook, "gangline"):
                what = f"an activation of the shape {tuple(tensor.shape)}"
                hook = self._watch_fresh(what, hook)
            return original(tensor, hook)

        return register_hook

    # --- parameters ------------------------------------------------------------------------------

    def _watch(self, hooks: Hooks, name: str, watch: Callable[[str, Any], Any]) -> None:
        for number, hook in list(hooks.items()):
            if not _is_of(hook, "gangline"):
                hooks[number] = watched = watch(f"parameter {name!r}", hook)
                self._replaced.append((hooks, number, watched, hook))

    def _watch_fresh(self, what: str, hook: Callable[[Tensor], Tensor | None]) -> Any:
        def watched(gradient: Tensor) -> Tensor | None:
            version = gradient._version
            result = hook(gradient)
            is_kept = result is None or result is gradient
            if not is_kept or gradient._version != version:
                kind = "Tensor.register_hook"
                self._note(f"the hook {_describe(hook)} of {what} ({kind})")
            return result

        return watched

    def _watch_added(self, what: str, hook: Callable[[Tensor], Any]) -> Any:
        def watched(parameter: Tensor) -> Any:
            gradient = parameter.grad
            version = 0 if gradient is None else gradient._version
            result = hook(parameter)
            is_kept = gradient is parameter.grad
            if not is_kept or (gradient is not None and gradient._version != version):
                kind = "Tensor.register_post_accumulate_grad_hook"
                self._note(f"the hook {_describe(hook)} of {what} ({kind})")
            return result  # torch refuses anything but None

        return watched

    # --- modules ---------------------------------------------------------------------------------

    def _module_hooks(self) -> Iterator[tuple[str, str, Any]]:
        """Where each is, how it was put there, and the hook."""
        for model in self._models:
            for name, module in model.named_modules():
                where = f"module {name!r}" if name else f"the model {type(model).__name__}"
                for hook in module._backward_hooks.values():
                    yield where, "Module.register_full_backward_hook", hook
                for hook in module._backward_pre_hooks.values():
                    yield where, "Module.register_full_backward_pre_hook", hook
        for hook in torch_module._global_backward_hooks.values():
            yield "all modules", "register_module_full_backward_hook", hook
        for hook in torch_module._global_backward_pre_hooks.values():
            yield "all modules", "register_module_full_backward_pre_hook", hook


def _function_of(hook: Any) -> Any:
    """The function that is called in the end, where it can be told."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    if isinstance(hook, types.MethodType):
        return hook.__func__
    is_plain = isinstance(hook, types.FunctionType | types.BuiltinFunctionType)
    return hook if is_plain else type(hook).__call__


def _is_of(hook: Any, *packages: str) -> bool:
    """Whether the function belongs to one of these packages."""
    module = getattr(_function_of(hook), "__module__", None) or ""
    return module.split(".")[0] in packages


def _returns_nothing(hook: Any) -> bool:
    """Whether its code shows that it never returns anything but None."""
    code = getattr(_function_of(hook), "__code__", None)
    if code is None:
        return False
    is_none = False  # what is returned, if it is returned next
    for instruction in dis.get_instructions(code):
        is_none = is_none and not instruction.is_jump_target
        if instruction.opname == "RETURN_VALUE" and not is_none:
            return False
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return False
        is_none = instruction.opname == "LOAD_CONST" and instruction.argval is None
    return True


def _describe(hook: Any) -> str:
    """The function's name, and where it is written."""
    function = _function_of(hook)
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(function, "__code__", None)
    place = "" if code is None else f" ({Path(code.co_filename).name}:{code.co_firstlineno})"
    return f"{name}{place}"
