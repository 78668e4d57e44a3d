# SPDX-License-Identifier: Apache-2.0
"""Notices what a loop itself does to parameters that servers hold: the next pull would undo it.

Within an epoch torch's version counters tell: gangline's own writes are noted when an update ends, so
whatever comes after them is the loop's. Between epochs many loops put other weights in, evaluate them,
and put the old ones back. So there sums over all bits and values decide. Changes through `.data` within
an epoch are not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import UnsupportedError
from gangline.worker.sync.served.early import sums_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Watch:
    """Knows served parameters as gangline has left them, and refuses what others have made of them."""

    def __init__(self, parameters: Sequence[Tensor], names: Sequence[str], *, mode: str) -> None:
        self._parameters, self._names, self._mode = parameters, names, mode
        self._versions: list[int] = []
        """How often each was changed when gangline wrote it last; empty: nothing is known."""
        self._sums: list[str] = []
        """What each held at the end of an epoch; empty: none has ended."""

    def note(self) -> None:
        """The parameters are as they should be."""
        self._versions = [parameter._version for parameter in self._parameters]

    def note_end(self) -> None:
        """So they are at the end of an epoch, too."""
        self.note()
        self._sums = [_sums(parameter) for parameter in self._parameters]

    def forget(self) -> None:
        """Gangline has written them meanwhile."""
        self._versions, self._sums = [], []

    def check(self) -> None:
        """Within an epoch: refuses any change since the last update."""
        changed = self._changed()
        if changed:
            raise self._refusal(changed[0])

    def check_begin(self) -> None:
        """Before an epoch: refuses values that are not those of the last one's end."""
        sums, self._sums = self._sums, []
        for index in self._changed() if sums else ():
            if _sums(self._parameters[index]) != sums[index]:
                raise self._refusal(index)

    def _changed(self) -> list[int]:
        pairs = enumerate(zip(self._versions, self._parameters, strict=False))
        return [index for index, (version, one) in pairs if one._version != version]

    def _refusal(self, index: int) -> UnsupportedError:
        return UnsupportedError(
            f"sync={self._mode!r}: something beside step() has changed {self._names[index]}, such as a "
            "clamp_() in the loop, other weights that it puts in, or max_norm of an embedding. The "
            "servers hold the parameters, so the next pull would undo that without a word. Train with "
            "sync='full' or 'local(8)', which keep what a loop does; where other weights are only "
            "evaluated, put them into a copy of the model"
        )


def _sums(parameter: Tensor) -> str:
    """As text, in which what is not a number equals itself."""
    flat = parameter.detach().reshape(-1)
    if flat.storage_offset():  # part of something larger: its bits cannot be seen as whole words
        flat = flat.clone()
    return repr([one.tolist() for one in sums_of(flat)])
