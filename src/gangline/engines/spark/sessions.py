# SPDX-License-Identifier: Apache-2.0
"""The Spark application of a run that was started by us."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.spec.engines.spark import SparkConfig

_PYTHON = "PYSPARK_PYTHON"


@contextmanager
def own_session(asked: SparkConfig, *, name: str) -> Iterator[Any]:
    """A session with these settings, which ends with the context. Raises LaunchError."""
    from pyspark.sql import SparkSession

    if "spark.pyspark.python" not in asked.settings:
        os.environ.setdefault(_PYTHON, sys.executable)  # as for ssh hosts: the same one everywhere
    builder = SparkSession.builder.appName(name)
    if asked.master is not None:
        builder = builder.master(asked.master)
    for key, value in asked.settings.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise LaunchError(
            f"no Spark application could be started at {asked.master or 'the usual master'} "
            f"({_first_line(error)}): see that `spark-submit --master {asked.master or 'URL'} …` works "
            "from here, and name the master by --spark-master"
        ) from error
    try:
        yield session
    finally:
        session.stop()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
