# SPDX-License-Identifier: Apache-2.0
"""Notices, at the end of an epoch, that workers differ in what models have got since `prepare`.

A layer that was replaced, a buffer that was None: nothing of it is exchanged, nor given to who joins.
That is harmless where it is the same everywhere, as a table that every worker computes.
"""

from __future__ import annotations

import warnings
from collections import ChainMap
from typing import TYPE_CHECKING
from zlib import crc32

import torch
from torch.nn.parameter import is_lazy

from gangline.worker.gradients.buffers import WholeNumbers
from gangline.worker.samples.sample_state import SampleState
from gangline.worker.usercode import find_caller

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn


class Latecomers:
    """The parameters and buffers that were not there when the models were prepared."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._known = {(module, name) for _, module, name, _ in self._tensors()}
        self.checksums: dict[str, int] = {}
        """By what it is: a number that two workers share if its values are about the same."""
        self._has_warned = False

    def look(self) -> None:
        """Takes the checksums of those that there are now."""
        self.checksums.clear()
        for what, module, name, tensor in self._tensors():
            if (module, name) not in self._known:
                self.checksums[what] = _checksum(tensor)

    def warn_of(self, differing: Sequence[str], *, is_main: bool) -> None:
        """Says once, on one worker, which of them were found to differ."""
        if not differing or self._has_warned or not is_main:
            return
        self._has_warned = True
        warnings.warn(
            f"at the end of an epoch the workers' models differ in what was put there after prepare(), "
            f"by replacing a module or by filling what was None: {', '.join(differing)}. It is not "
            "exchanged, and each worker goes on with its own. Put it there before prepare(), or make "
            "it the same everywhere (from one seed, or by gangline.mean(…))",
            UserWarning,
            stacklevel=find_caller().depth,
        )

    def _tensors(self) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
        """What each is for people, its module, its name there, and its values."""
        for number, model in enumerate(self._models):
            prefix = str(number) if len(self._models) > 1 else ""
            for path, module in model.named_modules(prefix=prefix):
                if isinstance(module, SampleState):
                    continue
                for kind in ("parameter", "buffer"):
                    for name, tensor in getattr(module, f"_{kind}s").items():
                        if tensor is not None:
                            full = f"{path}.{name}" if path else name
                            yield f"{kind} {full!r}", module, name, tensor


def _checksum(tensor: Tensor) -> int:
    """Of whole numbers exactly; of others so that rounding hardly ever makes a difference."""
    if tensor.layout is not torch.strided or tensor.is_quantized or is_lazy(tensor):
        return 0
    values = tensor.detach().reshape(-1).cpu()
    if not (values.is_floating_point() or values.is_complex()):
        return crc32(values.contiguous().view(torch.uint8).numpy().data)
    values = torch.view_as_real(values).reshape(-1) if values.is_complex() else values
    norm = float(torch.linalg.vector_norm(values.double()))
    parts = [float(values[place::2].double().sum()) / (norm or 1.0) for place in (0, 1)]
    marks = [f"{part:.1f}".replace("-0.0", "0.0") for part in parts]
    return crc32(f"{tuple(tensor.shape)} {norm:.2g} {marks}".encode())


class OwnTensors:
    """All that each worker has its own of, and that should be the same: whole numbers, latecomers."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._numbers = WholeNumbers(models)
        self._late = Latecomers(models)
        self.checksums = ChainMap(self._numbers.checksums, self._late.checksums)

    def look(self) -> None:
        """Takes the checksums of what the models hold now."""
        self._numbers.look()
        self._late.look()

    def warn_of(self, differing: Sequence[str], *, is_main: bool) -> None:
        """Says, once for each of the two, what was found to differ."""
        known = self._numbers.checksums
        self._numbers.warn_of([name for name in differing if name in known], is_main=is_main)
        self._late.warn_of([name for name in differing if name not in known], is_main=is_main)
