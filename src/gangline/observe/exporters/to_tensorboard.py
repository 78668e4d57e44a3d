# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's event files, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

if TYPE_CHECKING:
    from gangline.observe.exporters.exporter import Point


class TensorBoardExporter:
    """One scalar per value; written by a thread of TensorBoard's own."""

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder), flush_secs=5)

    def put(self, point: Point) -> None:
        """Writes one record with all values of the point."""
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()
        ]
        self._writer.add_event(
            Event(wall_time=point.t, step=max(0, point.step), summary=Summary(value=values))
        )

    def close(self, status: str) -> None:
        """Writes the rest."""
        self._writer.close()


def open_exporter(where: str, run: str) -> TensorBoardExporter:
    """A run's files are in a folder of its name, so that runs are told apart."""
    return TensorBoardExporter(Path(where) / run)
