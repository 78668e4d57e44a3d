# SPDX-License-Identifier: Apache-2.0
"""The tools that there are, and what each needs installed."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from gangline.observe.exporters.exporter import Exporter, Target
from gangline.spec.errors import UsageError


class _Tool(NamedTuple):
    name: str
    package: str
    """What must be importable; it comes with the extra of the same name as the flag."""
    module: str


_TOOLS = {
    "tensorboard": _Tool("TensorBoard", "tensorboard", "tensorboard"),
    "wandb": _Tool("Weights & Biases", "wandb", "wandb"),
    "mlflow": _Tool("MLflow", "mlflow", "mlflow"),
    "opentelemetry": _Tool("OpenTelemetry", "opentelemetry.exporter.otlp.proto.http", "otel"),
}


def find_target(flag: str, where: str) -> Target:
    """The tool of a flag, given points at `where`. Raises UsageError where it is not installed."""
    tool = _TOOLS[flag]
    if not _is_installed(tool.package):
        raise UsageError(
            f"--{flag} needs {tool.name}, which is not installed: pip install 'gangline[{flag}]'"
        )
    return Target(name=tool.name, open=partial(_open, tool.module, where))


def _open(module: str, where: str, run: str) -> Exporter:
    # Loaded where it is used: some of them take seconds.
    exporter: Exporter = import_module(f"gangline.observe.exporters.to_{module}").open_exporter(
        where, run
    )
    return exporter


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False
