# SPDX-License-Identifier: Apache-2.0
"""`gangline run --on k8s`: says how a run gets into a Kubernetes cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gangline.launch.engines.kind import PreparedRun, Tell
    from gangline.launch.program import Program
    from gangline.spec.config import RunConfig

_HOW = (
    "a run gets into a Kubernetes cluster by manifests, which need an image: `gangline k8s --image "
    "IMAGE -o job.yaml train.py` writes them, and `kubectl apply -f job.yaml` starts it"
)


class KubernetesRuns:
    """The engine `k8s`: what it takes is written by a command of its own."""

    def check(self, config: RunConfig) -> None:
        """Names that command: there is nothing here that could start pods."""
        raise UsageError(f"--on k8s: {_HOW}")

    def submit(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> str | None:
        """Never: `check` has refused it."""
        raise UsageError(_HOW)

    def prepared(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> AbstractContextManager[PreparedRun]:
        """Never: `check` has refused it."""
        raise UsageError(_HOW)


ENGINE = KubernetesRuns()
