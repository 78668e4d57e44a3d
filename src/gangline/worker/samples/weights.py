# SPDX-License-Identifier: Apache-2.0
"""How much a batch counts where `prepare(weight=)` says so: known when all members have told theirs."""

from __future__ import annotations

from concurrent.futures import Future

from gangline.spec.errors import ExchangeError


class PartOf(Future[float]):
    """A batch's part of what its window counts over all members (0 where all weights are 0)."""

    def __init__(self, part: float, whole: Future[float]) -> None:
        super().__init__()
        self.whole = whole
        self._part = part
        whole.add_done_callback(self._divide)

    def _divide(self, whole: Future[float]) -> None:
        error = whole.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(self._part / whole.result() if whole.result() else 0.0)


def whole_of(weight: float | Future[float]) -> float | None:
    """What the window of a batch counts over all members; None: as many as its samples are.

    0 where the others' could not be had: then the exchange of the gradient fails, too.
    """
    if not isinstance(weight, PartOf):
        return None
    try:
        return weight.whole.result()
    except ExchangeError:
        return 0.0
