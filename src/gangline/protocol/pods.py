# SPDX-License-Identifier: Apache-2.0
"""What a pod of Kubernetes finds in its environment and its mounted Secret, and its place in a job.

`gangline k8s` writes manifests that put these there. A script that such a pod runs by itself, without
`gangline join`, is a worker of the job that its Secret belongs to.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import msgspec

from gangline.protocol.launch import Launch
from gangline.spec.config import RunConfig
from gangline.spec.errors import UsageError
from gangline.spec.wire import WireSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in the pods of an Indexed Job, and so in those of a TrainJob."""
COORDINATOR_VARIABLE = "GANGLINE_COORDINATOR"
"""The coordinator's name in the headless service, and its port."""
MOUNT_VARIABLE, MOUNT = "GANGLINE_SECRETS", "/etc/gangline"
"""Where pods have the Secret, where the variable does not name another folder."""
TOKEN, CERTIFICATE, KEY, AUTHORITY = "token", "tls.crt", "tls.key", "ca.crt"


def find_pod(environment: Mapping[str, str]) -> Launch | None:
    """This process's place, if it is in a pod that belongs to a job of ours; None: it is not."""
    mount = environment.get(MOUNT_VARIABLE, MOUNT)
    token = os.path.join(mount, TOKEN)
    if INDEX_VARIABLE not in environment or not os.path.exists(token):
        return None  # any Indexed Job has an index: without the Secret it is nobody's but its own
    place = environment.get(COORDINATOR_VARIABLE, "")
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"this pod has a token in {token}, and {COORDINATOR_VARIABLE} is {place!r}: it must be the "
            "coordinator's HOST:PORT in the headless service, as `gangline k8s` writes it"
        )
    # `coordinator` is the pod's name, `NAME-coordinator-0`, in the service `NAME`.
    run = host.partition(".")[0].removesuffix("-coordinator-0")
    has_tls = os.path.exists(os.path.join(mount, AUTHORITY))
    return Launch(
        run=run,
        run_dir=os.path.join(tempfile.gettempdir(), "gangline", environment.get("HOSTNAME", "pod")),
        worker=-1,
        workers=0,
        token_file=token,
        coordinator=f"{'wss' if has_tls else 'ws'}://{place}",
        config=RunConfig(run=run, wire=_wire(mount)) if has_tls else RunConfig(run=run),
    )


def _wire(mount: str) -> WireSettings:
    return msgspec.structs.replace(
        WireSettings(),
        certificate=os.path.join(mount, CERTIFICATE),
        key=os.path.join(mount, KEY),
        authority=os.path.join(mount, AUTHORITY),
    )
