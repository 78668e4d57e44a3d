# SPDX-License-Identifier: Apache-2.0
"""The workers as a TrainJob of Kubeflow Trainer 2, in place of an Indexed Job.

The runtime that it refers to has a pod template, to which the Secret's mount is added. Coordinator,
Service and Secret are those of any job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.engines.kubernetes.manifests import (
    Manifest,
    environment,
    metadata,
    shared,
    volume_mounts,
    volumes,
    worker_command,
)

if TYPE_CHECKING:
    from gangline.engines.kubernetes.asked import KubernetesJob
    from gangline.engines.kubernetes.secrets import JobSecrets

DEFAULT_RUNTIME = "torch-distributed"
_NODE = "node"
"""What a runtime's job of trainers, and the container in it, are called."""


def trainjob_manifests(job: KubernetesJob, secrets: JobSecrets, *, runtime: str) -> list[Manifest]:
    """Everything that `kubectl apply` is given, in order."""
    return [*shared(job, secrets), trainjob(job, runtime=runtime)]


def trainjob(job: KubernetesJob, *, runtime: str = DEFAULT_RUNTIME) -> Manifest:
    """As many nodes as the job has at most. Each is one `gangline join`, not a `torchrun`."""
    command = worker_command(job)
    patch = {
        "terminationGracePeriodSeconds": job.grace_s,
        "volumes": volumes(job),
        "containers": [{"name": _NODE, "volumeMounts": volume_mounts()}],
    }
    node = {"name": _NODE, "template": {"spec": {"template": {"spec": patch}}}}
    limits = job.resources.limits
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, part="worker"),
        "spec": {
            "runtimeRef": {"name": runtime},
            "trainer": {
                "image": job.image,
                "command": command[:1],
                "args": command[1:],
                "env": environment(job),
                "numNodes": job.max_nodes,
                "resourcesPerNode": {"requests": limits, "limits": limits},
            },
            "runtimePatches": [
                {
                    "manager": "gangline.dev/k8s",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}},
                }
            ],
        },
    }
