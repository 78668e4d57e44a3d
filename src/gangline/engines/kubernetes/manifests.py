# SPDX-License-Identifier: Apache-2.0
"""A job as Kubernetes takes it: a Secret, a headless Service, the coordinator, and its workers.

The coordinator has a pod of its own, which needs no GPU: any worker's pod may be taken away, and
another one joins when there is room. Workers are the pods of an Indexed Job; one that is evicted, or
whose node ends, leaves politely, returns `LEFT`, and is started again without being counted as failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.protocol.pods import AUTHORITY, CERTIFICATE, COORDINATOR_VARIABLE, KEY, MOUNT, TOKEN

if TYPE_CHECKING:
    from gangline.engines.kubernetes.asked import KubernetesJob
    from gangline.engines.kubernetes.secrets import JobSecrets

LEFT = 143
"""What a pod returns whose workers have left because it is to end: the same as a plain SIGTERM."""
WORKER = "worker"
STATE = "/var/lib/gangline"
"""Where run folders are in a pod."""
DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
"""What Kubernetes says of a pod that it takes away itself."""
_POD_NAME = "POD_NAME"
_RETRIES = 6
_WAIT_S = 600
"""How long workers wait for the coordinator's pod: an image may have to be pulled first."""
_COORDINATOR_LIMITS = {"cpu": "1", "memory": "1Gi"}

Manifest = dict[str, Any]


def manifests(job: KubernetesJob, secrets: JobSecrets) -> list[Manifest]:
    """Everything that `kubectl apply` is given, in order."""
    return [*shared(job, secrets), workers(job)]


def shared(job: KubernetesJob, secrets: JobSecrets) -> list[Manifest]:
    """What is the same whoever runs the workers."""
    return [secret(job, secrets), service(job), coordinator(job)]


def secret(job: KubernetesJob, secrets: JobSecrets) -> Manifest:
    """The only place where the token is."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job),
        "type": "Opaque",
        "stringData": secrets.files,
    }


def service(job: KubernetesJob) -> Manifest:
    """Gives the pods names; also before they are ready, since they look for each other then."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(job),
            "ports": [{"name": "coordinator", "port": job.port, "targetPort": job.port}],
        },
    }


def coordinator(job: KubernetesJob) -> Manifest:
    """One pod. Its container goes on from the journal where it is started again."""
    container = {
        "name": "coordinator",
        "image": job.image,
        "command": coordinator_command(job),
        "ports": [{"name": "coordinator", "containerPort": job.port}],
        "resources": {"requests": _COORDINATOR_LIMITS, "limits": _COORDINATOR_LIMITS},
        "readinessProbe": {"tcpSocket": {"port": job.port}, "periodSeconds": 5},
        **_container_parts(job),
    }
    spec = {
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": _RETRIES,
        "template": {
            "metadata": {"labels": labels(job, part="coordinator")},
            "spec": {**pod_parts(job), "restartPolicy": "OnFailure", "containers": [container]},
        },
    }
    return _job(job, f"{job.name}-coordinator", "coordinator", spec)


def workers(job: KubernetesJob) -> Manifest:
    """The pods that train: as many as there is room for, up to the most that were asked for."""
    container = {
        "name": WORKER,
        "image": job.image,
        "command": worker_command(job),
        "env": environment(job),
        "resources": {"requests": job.resources.limits, "limits": job.resources.limits},
        **_container_parts(job),
    }
    spec = {
        "completionMode": "Indexed",
        "completions": job.max_nodes,
        "parallelism": job.max_nodes,
        "backoffLimitPerIndex": _RETRIES,
        # When it is trained, nobody needs the pods that never found room.
        "successPolicy": {"rules": [{"succeededCount": job.min_nodes}]},
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [DISRUPTED]},
                {
                    "action": "Ignore",
                    "onExitCodes": {"containerName": WORKER, "operator": "In", "values": [LEFT]},
                },
            ]
        },
        "template": {
            "metadata": {"labels": labels(job, part=WORKER)},
            "spec": {**pod_parts(job), "restartPolicy": "Never", "containers": [container]},
        },
    }
    return _job(job, job.name, WORKER, spec)


def coordinator_command(job: KubernetesJob) -> list[str]:
    """What the coordinator's pod runs; nothing in it is secret."""
    return [
        *("gangline", "up"),
        *("--workers", str(job.min_nodes * job.workers_per_node), "--until-done"),
        *("--host", "0.0.0.0", "--port", str(job.port)),
        *("--name", job.name, "--run-dir", f"{STATE}/{job.run}"),
        *("--token-file", f"{MOUNT}/{TOKEN}", *_tls_flags()),
    ]


def worker_command(job: KubernetesJob) -> list[str]:
    """What a worker's pod runs: one worker, or one per GPU, in a folder with the pod's name."""
    return [
        *("gangline", "join", f"{job.coordinator_host}:{job.port}", "--wait", str(_WAIT_S)),
        *("--run-dir", f"{STATE}/{job.run}@$({_POD_NAME})"),
        *("--token-file", f"{MOUNT}/{TOKEN}", *_tls_flags()),
        *("--notice", "sigterm", "--notice-deadline", f"{job.leave_s:g}"),
        *("--left-exit-code", str(LEFT)),
        # Kubernetes puts variables into commands; what the user wrote stays as it is.
        *(argument.replace("$(", "$$(") for argument in job.program),
    ]


def environment(job: KubernetesJob) -> list[dict[str, Any]]:
    """What a script that is run without `gangline join` is recognised by, and what the user gave."""
    found = {COORDINATOR_VARIABLE: f"{job.coordinator_host}:{job.port}", **job.environment}
    own = {"name": _POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return [own, *({"name": name, "value": value} for name, value in found.items())]


def pod_parts(job: KubernetesJob) -> dict[str, Any]:
    """What the pods of coordinator and workers have alike."""
    return {
        "subdomain": job.name,
        "terminationGracePeriodSeconds": job.grace_s,
        "automountServiceAccountToken": False,  # nobody here talks to the cluster
        "volumes": volumes(job),
    }


def volumes(job: KubernetesJob) -> list[dict[str, Any]]:
    """The secrets, a place for run folders, and memory that processes of a pod share."""
    kept: dict[str, Any] = {"emptyDir": {}}
    if job.claim:
        kept = {"persistentVolumeClaim": {"claimName": job.claim}}
    return [
        {"name": "secrets", "secret": {"secretName": job.name, "defaultMode": 0o400}},
        {"name": "state", **kept},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]


def volume_mounts() -> list[dict[str, Any]]:
    """Where the container has the volumes."""
    return [
        {"name": "secrets", "mountPath": MOUNT, "readOnly": True},
        {"name": "state", "mountPath": STATE},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]


def metadata(job: KubernetesJob, name: str = "", part: str = "") -> dict[str, Any]:
    """Name and labels of one object."""
    space = {"namespace": job.namespace} if job.namespace else {}
    return {"name": name or job.name, **space, "labels": labels(job, part=part)}


def labels(job: KubernetesJob, part: str = "") -> dict[str, str]:
    """What the objects of a job are found by."""
    found = {"app.kubernetes.io/name": "gangline", "app.kubernetes.io/instance": job.name}
    return {**found, "app.kubernetes.io/component": part} if part else found


def _job(job: KubernetesJob, name: str, part: str, spec: dict[str, Any]) -> Manifest:
    described = metadata(job, name, part)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": described, "spec": spec}


def _container_parts(job: KubernetesJob) -> dict[str, Any]:
    folder = {"workingDir": job.folder} if job.folder else {}
    return {
        **folder,
        "volumeMounts": volume_mounts(),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _tls_flags() -> tuple[str, ...]:
    files = {"--tls-cert": CERTIFICATE, "--tls-key": KEY, "--tls-ca": AUTHORITY}
    return tuple(part for flag, file in files.items() for part in (flag, f"{MOUNT}/{file}"))
