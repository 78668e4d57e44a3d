# SPDX-License-Identifier: Apache-2.0
"""What the main worker reports while it trains, gathered where the trainer runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gangline.engines.ray.services.framing import Request

SERVICE = "results"


class Keeping(NamedTuple):
    """Which checkpoints are kept: all, or so many, by a metric or the newest."""

    most: int | None = None
    attribute: str | None = None
    is_max: bool = True


class Report(NamedTuple):
    """One call of `gangline.ray.report`."""

    metrics: dict[str, Any]
    checkpoint: str
    """The folder of the checkpoint, below the storage path; empty: there was none, or it is gone."""


class Results:
    """Keeps all reports, in order. Ray makes an actor of it, on the trainer's node."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._reports: list[Report] = []
        self._value = b""

    def add(self, metrics: dict[str, Any], checkpoint: str) -> list[str]:
        """One more; the checkpoints that nobody needs from here on."""
        self._reports.append(Report(metrics, checkpoint))
        kept = [one for one in self._reports if one.checkpoint]
        most = self._keeping.most
        if most is None or len(kept) <= most:
            return []
        # The newest stays: it is what a job that is broken off goes on from.
        ranked = sorted(kept[:-1], key=self._rank)
        obsolete = {one.checkpoint for one in ranked[: len(kept) - most]}
        self._reports = [
            one._replace(checkpoint="") if one.checkpoint in obsolete else one
            for one in self._reports
        ]
        return sorted(obsolete)

    def keep_value(self, value: bytes) -> None:
        """What the function returned."""
        self._value = value

    def all(self) -> tuple[list[Report], bytes]:
        """All reports, and what the function returned."""
        return self._reports, self._value

    def _rank(self, report: Report) -> float:
        """Higher is better; without a metric the newer is."""
        name = self._keeping.attribute
        if name is None:
            return float(self._reports.index(report))
        value = float(report.metrics.get(name, float("-inf")))
        return value if self._keeping.is_max else -value


class ResultService:
    """Passes a worker's reports on."""

    def __init__(self, results: Any) -> None:
        self._results = results

    def answer(self, request: Request, data: bytes) -> tuple[dict[str, Any], bytes]:
        """Returns when what was said is kept."""
        import ray

        if request.what == "value":
            ray.get(self._results.keep_value.remote(data))
            return {}, b""
        values = request.values
        obsolete = ray.get(self._results.add.remote(values["metrics"], values["checkpoint"]))
        return {"obsolete": obsolete}, b""
