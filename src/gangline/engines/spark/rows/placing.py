# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a DataFrame are while it is trained on, and that they are gone afterwards."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangline.engines.spark.counting import is_one_machine
from gangline.engines.spark.rows.materialise import into_shared, through_driver
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.engines.spark.rows.index import RowIndex

_PREFIX = "gangline-rows-"


@contextmanager
def placed_rows(
    frame: Any, context: Any, folder: Path | None
) -> Iterator[tuple[RowIndex, str | None]]:
    """The rows in files, and the folder of these; None: that into which Spark brings files."""
    if folder is not None or is_one_machine(context.master):
        with _temporary(folder) as made:
            yield into_shared(frame, Path(made)), made
        return
    # Executors that come later in the application fetch all files that it ever handed out. So these
    # stay, in a folder that ends with the application, and are emptied.
    kept = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=context._temp_dir))
    try:
        index = through_driver(frame, kept)
        for file in index.files:
            context.addFile(str(kept / file))
        yield index, None
    finally:
        for path in kept.iterdir():
            os.truncate(path, 0)


def _temporary(folder: Path | None) -> tempfile.TemporaryDirectory[str]:
    if folder is not None and not folder.is_dir():
        raise UsageError(
            f"there is no folder {folder} on the driver: make it first, on what is shared"
        )
    try:
        return tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder)
    except OSError as error:
        raise UsageError(f"nothing can be written into {folder}: {error.strerror}") from error
