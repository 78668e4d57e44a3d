# SPDX-License-Identifier: Apache-2.0
"""`gangline k8s`: writes what a Kubernetes cluster needs to run a script by several pods."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.flags.groups import FlagGroup, grouped
from gangline.cli.output import err, say
from gangline.cli.run.program import ModuleFlag, ProgramCommand
from gangline.engines.kubernetes.asked import (
    DEFAULT_PORT,
    KubernetesJob,
    PodResources,
    name_from,
    parse_nodes,
)
from gangline.engines.kubernetes.manifests import manifests
from gangline.engines.kubernetes.secrets import JobSecrets
from gangline.engines.kubernetes.trainjob import DEFAULT_RUNTIME, trainjob_manifests
from gangline.engines.kubernetes.yaml_text import documents
from gangline.spec.errors import UsageError
from gangline.spec.machines.notice import DEFAULT_NOTICE_S, check_notice_s


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command(
        "k8s",
        cls=ProgramCommand,
        # Whatever follows the script belongs to the script, dashes or not.
        context_settings={"allow_interspersed_args": False},
    )(grouped(k8s))


class PodFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say what the pods are."""

    image: Annotated[
        str, typer.Option(help="The image, with gangline, torch and the script; must be given.")
    ] = ""
    nodes: Annotated[
        str,
        typer.Option(metavar="MIN[:MAX]", help="How many pods train: begin with MIN, up to MAX."),
    ] = "1"
    cpu: Annotated[str, typer.Option(help="What each pod may use of CPUs, such as 4 or 500m.")] = (
        PodResources().cpu
    )
    memory: Annotated[str, typer.Option(help="Its memory, such as 16Gi.")] = PodResources().memory
    gpus: Annotated[int, typer.Option(help="Its GPUs: one worker each.")] = 0
    gpu_resource: Annotated[str, typer.Option(help="What the cluster calls a GPU.")] = (
        PodResources().gpu_resource
    )
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable for the script.")
    ] = None
    folder: Annotated[str, typer.Option(help="Where in the image the script runs.")] = ""
    claim: Annotated[
        str, typer.Option(help="A PersistentVolumeClaim for run folders and checkpoints.")
    ] = ""
    leave: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long a pod that is to end has to leave the job."),
    ] = DEFAULT_NOTICE_S


def k8s(
    script: Annotated[
        str | None, typer.Argument(help="The script, as it is found in the image.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments, passed on untouched.")
    ] = None,
    *,
    module: ModuleFlag = None,
    pods: PodFlags,
    name: Annotated[
        str | None, typer.Option(help="What everything is called (after the script).")
    ] = None,
    namespace: Annotated[str, typer.Option(help="The namespace (the one kubectl uses).")] = "",
    port: Annotated[int, typer.Option(help="The coordinator's port.")] = DEFAULT_PORT,
    kubeflow: Annotated[
        bool, typer.Option("--kubeflow", help="Write a TrainJob instead of an Indexed Job.")
    ] = False,
    runtime: Annotated[
        str, typer.Option(help="With --kubeflow: the training runtime that it refers to.")
    ] = DEFAULT_RUNTIME,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A file, for you alone; else it is printed."),
    ] = None,
) -> None:
    """Write the manifests of a job for Kubernetes, with a token made for it."""
    if runtime != DEFAULT_RUNTIME and not kubeflow:
        raise UsageError("--runtime is the training runtime of a TrainJob: give --kubeflow, too")
    job = _asked(script, arguments or [], module, pods, name=name, namespace=namespace, port=port)
    secrets = JobSecrets.make(job.name, job.coordinator_names)
    made = manifests(job, secrets)
    if kubeflow:
        made = trainjob_manifests(job, secrets, runtime=runtime)
    text = documents(made)
    if output is None:
        typer.echo(text, nl=False)
        return
    _write(output, text)
    say(f"kubectl apply -f {output}")
    say(f"kubectl logs -f job/{job.name}-coordinator")
    say(f"kubectl delete -f {output}")
    err().print(f"{output} holds the job's token: keep it out of version control", markup=False)


def _asked(
    script: str | None,
    arguments: list[str],
    module: str | None,
    pods: PodFlags,
    *,
    name: str | None,
    namespace: str,
    port: int,
) -> KubernetesJob:
    if script is None and module is None:
        raise UsageError(
            "nothing to run: give the script as it is found in the image, `gangline k8s --image "
            "IMAGE train.py`, or a module, `-m package.module`"
        )
    if not pods.image:
        raise UsageError(
            "--image is missing: name the image that has gangline, torch and the script, such as "
            "--image registry.example/train:1"
        )
    first = () if script is None else (script,)
    program = (*first, *arguments) if module is None else ("-m", module, *first, *arguments)
    check_notice_s(pods.leave, name="--leave")
    least, most = parse_nodes(pods.nodes)
    named = name or name_from(module.rpartition(".")[2] if module else Path(str(script)).stem)
    return KubernetesJob(
        name=named,
        run=f"{named}-{time.strftime('%Y%m%d-%H%M%S')}",
        image=pods.image,
        program=program,
        min_nodes=least,
        max_nodes=most,
        namespace=namespace,
        resources=PodResources(
            cpu=pods.cpu, memory=pods.memory, gpus=pods.gpus, gpu_resource=pods.gpu_resource
        ),
        claim=pods.claim,
        folder=pods.folder,
        environment=dict(_variable(one) for one in pods.env or ()),
        port=port,
        leave_s=pods.leave,
    )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--env {text!r} gives no value: write NAME=VALUE")
    return name, value


def _write(path: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            f"{path} is there already, perhaps with the token of a job that runs: name another file, "
            "or remove it"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
