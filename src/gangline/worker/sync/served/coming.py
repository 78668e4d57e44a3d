# SPDX-License-Identifier: Apache-2.0
"""Parameters whose newest values are on their way: whoever uses one waits for that one alone.

While its value has not come, a parameter is of a class of its own, through which torch calls all that
is done with it. So a forward pass waits for each parameter when it uses it, and so does everything
else: a state_dict, a copy, an average of weights, a loop that reads a parameter. Nobody sees an old
value, and the order in which parameters are used is known without asking.
"""

from __future__ import annotations

import copy
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from gangline.paramserver.service.pushes import check_fit, copy_into

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_READ = (
    "_grad _version device dtype grad grad_fn is_cpu is_cuda is_leaf is_meta is_quantized is_sparse "
    "itemsize layout nbytes ndim requires_grad retains_grad shape"
)
_CALLED = (
    "dim element_size is_complex is_contiguous is_floating_point nelement numel register_hook "
    "register_post_accumulate_grad_hook requires_grad_ size storage_offset stride"
)
_BLIND: frozenset[Any] = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _READ.split()),
        *(getattr(Tensor, name) for name in _CALLED.split()),
        *(getattr(Tensor, name).__set__ for name in ("grad", "requires_grad")),
        *(getattr(Tensor, name).__delete__ for name in ("grad",)),
        torch.is_complex,
        torch.is_floating_point,
        torch.numel,
    ]
)
"""What looks at no values."""
_coming: dict[int, tuple[Arrivals, int]] = {}
"""By the parameter's id: which pull it waits for, and its index there."""


class ComingParameter(nn.Parameter):
    """What a parameter is while its value is on its way."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Somebody does something with it."""
        kwargs = kwargs or {}
        if func in _BLIND:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        for parameter in _found([args, kwargs]):
            _bring(parameter)
        return func(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        """A copy of the parameter as it is when it has come."""
        _bring(self)
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What is pickled is what it is when it has come."""
        _bring(self)
        return self.__reduce_ex__(protocol)


def _bring(parameter: Tensor) -> None:
    found = _coming.get(id(parameter))
    if found is not None:
        arrivals, index = found
        arrivals.bring(index)


def _found(given: Any) -> Iterator[ComingParameter]:
    if isinstance(given, ComingParameter):
        yield given
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _found(one)
    elif isinstance(given, dict):
        yield from _found(list(given.values()))


class Arrivals:
    """The values of one pull: those that have come, and those that are waited for."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """From now on whoever uses one of the parameters waits for its value."""
        self._parameters = parameters
        self._changed = threading.Condition()
        self._values: dict[int, Tensor] = {}
        self._open = set(range(len(parameters)))
        self._is_over = False
        self.used: list[int] = []
        """In the order in which they were used."""
        self.waited_s = 0.0
        """For how long somebody has waited."""
        for index, parameter in enumerate(parameters):
            increment_version(parameter)  # a graph that needs the old value is refused, as ever
            if type(parameter) is nn.Parameter:
                _coming[id(parameter)] = (self, index)
                parameter.__class__ = ComingParameter

    def begin(self) -> None:
        """Values are sent, perhaps once more: what had come, and was not used, is void."""
        with self._changed:
            self._values.clear()

    def arrive(self, index: int, value: Tensor) -> None:
        """A value is there; it stays as it is until this is closed."""
        check_fit(value, self._parameters[index], f"parameter {index}")
        with self._changed:
            if index in self._open:
                self._values[index] = value
                self._changed.notify_all()

    def end(self) -> None:
        """No more values come, because all have, or because the pull has failed."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def bring(self, index: int) -> None:
        """Waits for a value, and writes it; where none comes, the parameter stays as it was."""
        began_s = time.perf_counter()
        with self._changed:
            if index not in self._open:
                return
            self._changed.wait_for(lambda: index in self._values or self._is_over)
            self.waited_s += time.perf_counter() - began_s
            if index not in self._open:
                return
            self._open.remove(index)
            self.used.append(index)
            self._write(index)

    def _write(self, index: int) -> None:
        parameter = self._parameters[index]
        if _coming.pop(id(parameter), None) is not None:
            parameter.__class__ = nn.Parameter
        value = self._values.pop(index, None)
        if value is not None:
            copy_into(parameter.data, value)

    def close(self) -> None:
        """Waits for all that nobody has used yet."""
        for index in sorted(self._open):
            self.bring(index)
