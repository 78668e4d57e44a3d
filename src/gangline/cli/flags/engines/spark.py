# SPDX-License-Identifier: Apache-2.0
"""The flags of `gangline run --on spark`."""

from typing import Annotated

import typer

from gangline.cli.flags.groups import FlagGroup, Sets


class SparkFlags(FlagGroup, frozen=True, kw_only=True):
    """The application, as Spark's own commands name it."""

    spark_master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --on spark: the cluster, such as spark://host:7077 (else as Spark is set up).",
        ),
        Sets("spark.master"),
    ] = None
    spark_conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="With --on spark: a setting, such as spark.executor.memory=2g; repeat it.",
        ),
        Sets("spark.conf"),
    ] = None
    spark_strict: Annotated[
        bool,
        typer.Option(
            "--spark-strict",
            help="With --on spark: one barrier stage, whose tasks all begin, and end, together.",
        ),
        Sets("spark.strict"),
    ] = False
