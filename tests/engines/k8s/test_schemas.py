# SPDX-License-Identifier: Apache-2.0
"""The manifests against the schemas of Kubernetes and Kubeflow, read back from the YAML."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.cli.main import run_command
from gangline.engines.kubernetes.yaml_text import documents

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = ("1.33", "1.37")


def written(folder: Path, *flags: str) -> Path:
    path = folder / "job.yaml"
    common = ["--image", "registry.example/digits:1", "--nodes", "2:5", "-o", str(path)]
    assert run_command(["k8s", *common, *flags, "train.py", "--lr", "0.1", "x: $(y)"]) == 0
    return path


def validated(path: Path, version: str, packages: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", version, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(packages)},
        check=False,
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "flags", [(), ("--gpus", "2", "--claim", "data", "--namespace", "ml", "--folder", "/app")]
)
def test_what_is_written_is_what_kubernetes_takes(
    flags: tuple[str, ...], version: str, packages: Path, tmp_path: Path
) -> None:
    found = validated(written(tmp_path, *flags), version, packages)
    assert found.returncode == 0, found.stdout + found.stderr
    assert (found.stdout + found.stderr).lower().count("pass") >= 4


def test_a_wrong_field_would_be_found(packages: Path, tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace("backoffLimitPerIndex", "backofLimitPerIndex"))
    assert validated(path, VERSIONS[0], packages).returncode != 0


def test_a_trainjob_is_what_kubeflow_takes(tmp_path: Path) -> None:
    import yaml
    from kubeflow_trainer_api import models

    path = written(tmp_path, "--kubeflow", "--gpus", "1")
    *others, made = yaml.safe_load_all(path.read_text())
    assert [one["kind"] for one in others] == ["Secret", "Service", "Job"]
    read = models.TrainerV1alpha1TrainJob.from_dict(made)
    assert read.to_dict() == made  # a field that Kubeflow does not know would be gone


SCALARS = st.booleans() | st.integers() | st.text(max_size=20) | st.none()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.text(min_size=1), VALUES, min_size=1), min_size=1))
def test_yaml_reads_back_what_was_written(values: list[dict[str, Any]]) -> None:
    import yaml

    assert list(yaml.safe_load_all(documents(values))) == values
