# SPDX-License-Identifier: Apache-2.0
"""The manifests of `gangline k8s`, as far as no schema is needed to judge them."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

import pytest

from gangline.cli.main import run_command
from gangline.engines.kubernetes.asked import KubernetesJob, PodResources, name_from, parse_nodes
from gangline.engines.kubernetes.manifests import DISRUPTED, LEFT, manifests
from gangline.engines.kubernetes.secrets import JobSecrets
from gangline.engines.kubernetes.trainjob import trainjob_manifests
from gangline.engines.kubernetes.yaml_text import documents
from gangline.protocol.pods import MOUNT
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = JobSecrets(token="the-token", certificate="C\n", key="the-key\n", authority="A\n")


def asked(**changes: Any) -> KubernetesJob:
    given: dict[str, Any] = {
        "name": "digits",
        "run": "digits-1",
        "image": "registry.example/digits:1",
        "program": ("train.py", "--note", "$(HOME)"),
        "min_nodes": 2,
        "max_nodes": 5,
    }
    return KubernetesJob(**{**given, **changes})


def by_name(**changes: Any) -> dict[str, dict[str, Any]]:
    made = manifests(asked(**changes), SECRETS)
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in made}


def test_secrets_are_in_the_secret_alone() -> None:
    made = by_name()
    assert made["Secret/digits"]["stringData"]["token"] == "the-token"
    others = json.dumps([one for name, one in made.items() if name != "Secret/digits"])
    assert "the-token" not in others
    assert "the-key" not in others


def test_a_job_begins_with_the_least_and_grows_to_the_most() -> None:
    made = by_name(resources=PodResources(gpus=4))
    spec = made["Job/digits"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 5, 5)
    (container,) = made["Job/digits-coordinator"]["spec"]["template"]["spec"]["containers"]
    command = container["command"]
    assert command[command.index("--workers") + 1] == "8"  # two pods with four GPUs each


def test_a_pod_that_leaves_is_not_counted_and_has_time_to() -> None:
    job = by_name(leave_s=60.0)["Job/digits"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    command = container["command"]
    leave_s = float(command[command.index("--notice-deadline") + 1])
    assert pod["terminationGracePeriodSeconds"] > leave_s == 60.0
    assert command[command.index("--left-exit-code") + 1] == str(LEFT)
    ignored = [rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "Ignore"]
    assert {"containerName": "worker", "operator": "In", "values": [LEFT]} in [
        rule.get("onExitCodes") for rule in ignored
    ]
    assert [DISRUPTED] in [rule.get("onPodConditions") for rule in ignored]


def test_what_the_user_wrote_is_not_taken_for_a_variable() -> None:
    (container,) = by_name()["Job/digits"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][-3:] == ["train.py", "--note", "$$(HOME)"]


def test_workers_find_the_coordinator_by_the_headless_service() -> None:
    made = by_name(namespace="ml")
    service = made["Service/digits"]
    assert service["spec"]["clusterIP"] == "None"
    pod = made["Job/digits-coordinator"]["spec"]["template"]
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = made["Job/digits"]["spec"]["template"]["spec"]["containers"]
    assert "digits-coordinator-0.digits:7700" in container["command"]
    assert "digits-coordinator-0.digits.ml.svc" in asked(namespace="ml").coordinator_names


def test_a_claim_keeps_run_folders_and_each_pod_has_its_own() -> None:
    made = by_name(claim="shared")
    folders = set()
    for name in ("Job/digits", "Job/digits-coordinator"):
        pod = made[name]["spec"]["template"]["spec"]
        assert {"claimName": "shared"} in [
            one.get("persistentVolumeClaim") for one in pod["volumes"]
        ]
        command = pod["containers"][0]["command"]
        folders.add(command[command.index("--run-dir") + 1])
    assert len(folders) == 2
    assert any("$(POD_NAME)" in folder for folder in folders)


def test_a_trainjob_has_the_same_workers() -> None:
    *_, made = trainjob_manifests(asked(), SECRETS, runtime="torch-distributed")
    trainer = made["spec"]["trainer"]
    (container,) = by_name()["Job/digits"]["spec"]["template"]["spec"]["containers"]
    assert [*trainer["command"], *trainer["args"]] == container["command"]
    assert trainer["numNodes"] == 5
    assert MOUNT in json.dumps(made["spec"]["runtimePatches"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "Digits"}, "--name 'Digits'"),
        ({"image": "two words"}, "--image 'two words'"),
        ({"min_nodes": 0}, "--nodes 0:5"),
        ({"min_nodes": 6}, "--nodes 6:5"),
        ({"port": 0}, "--port"),
        ({"namespace": "a.b"}, "--namespace"),
        ({"claim": "A"}, "--claim"),
        ({"environment": {"a-b": "1"}}, "--env 'a-b'"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        asked(**changes)


def test_quantities_are_checked() -> None:
    with pytest.raises(UsageError, match="--memory '16 GB'"):
        PodResources(memory="16 GB")
    with pytest.raises(UsageError, match="--gpus"):
        PodResources(gpus=-1)


def test_numbers_of_pods() -> None:
    assert parse_nodes("4") == (4, 4)
    assert parse_nodes("2:8") == (2, 8)
    with pytest.raises(UsageError, match="--nodes 'two'"):
        parse_nodes("two")


def test_names_come_from_scripts() -> None:
    assert name_from("Train_MNIST") == "train-mnist"
    assert name_from("2nd try") == "run-2nd-try"


def test_yaml_quotes_what_could_be_something_else() -> None:
    text = documents(
        [{"a": "yes", "b": "1", "c": 1, "d": True, "e": [], "f": "x: y", "g": "plain"}]
    )
    assert text == 'a: "yes"\nb: "1"\nc: 1\nd: true\ne: []\nf: "x: y"\ng: plain\n'
    assert documents([{"a": "one\ntwo\n"}]) == "a: |\n  one\n  two\n"
    with pytest.raises(TypeError, match="float"):
        documents([{"a": 1.5}])


def test_the_command_writes_a_file_for_its_owner_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    flags = [
        "k8s",
        "--image",
        "x:1",
        "--nodes",
        "1:2",
        "-o",
        str(path),
        "train.py",
        "--epochs",
        "3",
    ]
    assert run_command(flags) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    shown = capsys.readouterr()
    assert f"kubectl apply -f {path}" in shown.out
    assert "holds the job's token" in shown.err
    assert run_command(flags) == 2  # the token of a job that runs is not written over
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--image", "x:1"], "nothing to run"),
        (["train.py"], "--image is missing"),
        (["--image", "x:1", "--runtime", "mine", "train.py"], "give --kubeflow"),
        (["--image", "x:1", "--env", "A", "train.py"], "write NAME=VALUE"),
        (["--image", "x:1", "--leave", "0", "train.py"], "--leave must be"),
    ],
)
def test_bad_flags_are_named(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["k8s", *flags]) == 2
    assert words in capsys.readouterr().err
