# SPDX-License-Identifier: Apache-2.0
"""What is asked of a Kubernetes cluster, checked before anybody hands it in there."""

from __future__ import annotations

import re

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.machines.notice import DEFAULT_NOTICE_S

DEFAULT_PORT = 7700
MARGIN_S = 10
"""How much longer than its workers may take to leave a pod is given until it is killed."""
_MAX_NODES = 10_000
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?")
"""Kubernetes takes 63 characters; pods and their host names put some behind the name."""
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_RESOURCE = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9._-]+")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class PodResources(msgspec.Struct, frozen=True, kw_only=True):
    """What each pod of workers is given, and no more: requests and limits are the same."""

    cpu: str = "1"
    memory: str = "2Gi"
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    """What the cluster calls its GPUs."""

    def __post_init__(self) -> None:
        for name, value in (("--cpu", self.cpu), ("--memory", self.memory)):
            if not _QUANTITY.fullmatch(value):
                raise UsageError(
                    f"{name} {value!r} is no quantity of Kubernetes: write for example 4, 500m or 16Gi"
                )
        if self.gpus < 0:
            raise UsageError(f"--gpus is 0 or more, not {self.gpus}")
        if not _RESOURCE.fullmatch(self.gpu_resource):
            raise UsageError(
                f"--gpu-resource {self.gpu_resource!r} is no resource's name, such as nvidia.com/gpu"
            )

    @property
    def limits(self) -> dict[str, str]:
        """As a manifest has them."""
        gpus = {self.gpu_resource: str(self.gpus)} if self.gpus else {}
        return {"cpu": self.cpu, "memory": self.memory, **gpus}


class KubernetesJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job on a cluster: its program, its image, and how many pods it has at least and at most."""

    name: str
    run: str
    """The name of the run's folder, which no earlier run had."""
    image: str
    program: tuple[str, ...]
    """What python is given, as it is in the image."""
    min_nodes: int = 1
    """It begins when so many pods are there."""
    max_nodes: int = 1
    """It has no more; those that find no room wait for it."""
    namespace: str = ""
    """Empty: whatever `kubectl` uses."""
    resources: PodResources = PodResources()
    claim: str = ""
    """A PersistentVolumeClaim for run folder and checkpoints; empty: they go with the pods."""
    folder: str = ""
    """Where in the container the script runs; empty: where the image says."""
    environment: dict[str, str] = {}
    port: int = DEFAULT_PORT
    leave_s: float = DEFAULT_NOTICE_S
    """How long workers have to leave when their pod is to end."""

    def __post_init__(self) -> None:
        _check_name(self.name, name="--name")
        _check_name(self.run, name="the run")
        if self.namespace and not _LABEL.fullmatch(self.namespace):
            raise UsageError(f"--namespace {self.namespace!r} is no name of a namespace")
        if self.claim and not _LABEL.fullmatch(self.claim):
            raise UsageError(f"--claim {self.claim!r} is no name of a PersistentVolumeClaim")
        if not _IMAGE.fullmatch(self.image):
            raise UsageError(
                f"--image {self.image!r} is no image, such as registry.example/train:1"
            )
        if not 1 <= self.min_nodes <= self.max_nodes <= _MAX_NODES:
            raise UsageError(
                f"--nodes {self.min_nodes}:{self.max_nodes} must be MIN:MAX with 1 to {_MAX_NODES} "
                "pods, MIN not above MAX; or one number for both"
            )
        if not 1 <= self.port < 1 << 16:
            raise UsageError(f"--port is 1 to 65535, not {self.port}")
        for variable in self.environment:
            if not _VARIABLE.fullmatch(variable):
                raise UsageError(f"--env {variable!r} is no name of a variable: write NAME=VALUE")

    @property
    def workers_per_node(self) -> int:
        """One per GPU, or one."""
        return max(1, self.resources.gpus)

    @property
    def grace_s(self) -> int:
        """How long a pod has from SIGTERM on until it is killed."""
        return int(self.leave_s) + MARGIN_S

    @property
    def coordinator_host(self) -> str:
        """The name of the coordinator's pod in the headless service."""
        return f"{self.name}-coordinator-0.{self.name}"

    @property
    def coordinator_names(self) -> tuple[str, ...]:
        """All names by which it may be called: its certificate has them."""
        host, space = self.coordinator_host, self.namespace
        longer = (f"{host}.{space}", f"{host}.{space}.svc", f"{host}.{space}.svc.cluster.local")
        return (host, *longer) if space else (host,)


def parse_nodes(text: str) -> tuple[int, int]:
    """`4` is exactly so many pods; `2:8` is from 2 to 8."""
    least, colon, most = text.partition(":")
    try:
        return int(least), int(most if colon else least)
    except ValueError:
        raise UsageError(
            f"--nodes {text!r} is no number of pods: write 4, or 2:8 for two to eight"
        ) from None


def name_from(stem: str) -> str:
    """A name that Kubernetes takes, from a script's."""
    plain = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    named = plain if plain[:1].isalpha() else f"run-{plain}".strip("-")
    return named[:30].strip("-")


def _check_name(text: str, *, name: str) -> None:
    if not _NAME.fullmatch(text):
        raise UsageError(
            f"{name} {text!r} cannot name things in Kubernetes: it takes small letters, digits and "
            "dashes, a letter first, 47 characters at most"
        )
