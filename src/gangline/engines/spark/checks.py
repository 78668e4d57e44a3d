# SPDX-License-Identifier: Apache-2.0
"""Whether Spark can be used from here: what is missing is named before anything is started."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEAST_PYSPARK, NEXT_PYSPARK = (4, 0), (5, 0)
LEAST_JAVA = 17
INSTALL = "pip install 'gangline[spark]'"
_JAVA_S = 30.0
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_packages(version_of: Callable[[str], str] = metadata.version) -> None:
    """Refuses to go on without the packages of the extra. Raises LaunchError."""
    for name in ("pyspark", "pyarrow", "pandas"):
        try:
            found = version_of(name)
        except metadata.PackageNotFoundError:
            raise LaunchError(
                f"Spark needs the package {name}, which is not installed here: {INSTALL}"
            ) from None
        if name == "pyspark":
            _check_pyspark(found)


def _check_pyspark(found: str) -> None:
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if not LEAST_PYSPARK <= numbers < NEXT_PYSPARK:
        raise LaunchError(
            f"pyspark is version {found}, and it takes 4.0 or later, below 5: "
            "pip install 'pyspark>=4,<5', as on the cluster"
        )


def check_java(
    environment: Mapping[str, str] = os.environ,
    *,
    ask: Callable[[str], str] | None = None,
) -> None:
    """Refuses to go on without a Java that Spark runs on. Raises LaunchError."""
    home = environment.get("JAVA_HOME")
    if home:
        java: str | None = str(Path(home) / "bin" / "java")
        where = f"JAVA_HOME is {home}"
        if not Path(str(java)).is_file():
            java = None
    else:
        java = shutil.which("java", path=environment.get("PATH"))
        where = "there is none in PATH, and JAVA_HOME is not set"
    mend = f"install Java {LEAST_JAVA} (Debian: apt install openjdk-{LEAST_JAVA}-jre-headless)"
    if java is None:
        raise LaunchError(
            f"Spark needs Java, and none was found ({where}): {mend}, or set JAVA_HOME"
        )
    said = (ask or _java_says)(java)
    match = _JAVA_VERSION.search(said)
    if match is None:
        raise LaunchError(f"{java} does not say which Java it is ({said.strip()[:200]}): {mend}")
    if int(match[1]) < LEAST_JAVA:
        raise LaunchError(
            f"{java} is Java {match[1]}, and Spark 4 takes {LEAST_JAVA} or later: {mend}, and set "
            "JAVA_HOME to it"
        )


def _java_says(java: str) -> str:
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stderr + done.stdout


def check_frame(data: object) -> None:
    """Refuses what is neither a DataFrame nor an RDD of this process's Spark. Raises UsageError."""
    kind = type(data)
    name = f"{kind.__module__}.{kind.__name__}"
    if kind.__module__.startswith("pyspark.sql.connect"):
        raise UsageError(
            "this DataFrame is of Spark Connect, whose driver is another process: workers could not "
            "join a coordinator here. Run the script on the driver, by spark-submit or with "
            "SparkSession.builder.master(…), and unset SPARK_REMOTE"
        )
    if kind.__module__.startswith("pyspark.pandas"):
        raise UsageError(f"{name} is a pandas-on-Spark frame: give data.to_spark()")
    if not (hasattr(data, "mapInArrow") or hasattr(data, "mapPartitionsWithIndex")):
        raise UsageError(
            f"the data must be a DataFrame or an RDD of pyspark, not {name}; make one by "
            "spark.createDataFrame(…) or spark.read.parquet(…)"
        )


def explained(error: Exception) -> Exception:
    """What an error of a Spark job means to the user, if it is one that we know; else the same."""
    text = str(error)
    if "No module named 'gangline" in text:
        return LaunchError(
            "the executors' python has no gangline: install the same version for it on every node, "
            "or name a python that has it by PYSPARK_PYTHON (spark.pyspark.python)"
        )
    missing = re.search(r"No module named '([\w.]+)'", text)
    if missing:
        return LaunchError(
            f"the executors' python has no {missing[1]}: install it on every node (of gangline's own: "
            f"{INSTALL}), or name a python that has it by PYSPARK_PYTHON (spark.pyspark.python)"
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return LaunchError(
            "the executors run another version of python than the driver: name the same one by "
            "PYSPARK_PYTHON (spark.pyspark.python) for both"
        )
    return error
