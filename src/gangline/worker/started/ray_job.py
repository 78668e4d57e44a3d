# SPDX-License-Identifier: Apache-2.0
"""The script of a job that was handed in by `ray job submit`.

It is one process, which becomes the launcher of workers in the job's cluster. Workers run the same
script, and are told by the launcher who they are.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.worker.place import Place

_JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray in the process of a submitted job, and not documented."""
_JOB_KEY = "job_submission_id"


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """The script of a job that was handed in by `ray job submit`."""

    program: tuple[str, ...]

    def place(self, *, timeout_s: float) -> Place:
        """Never returns: this process becomes `gangline run --on ray`, which runs the script."""
        sys.stdout.flush()
        sys.stderr.flush()
        command = (sys.executable, "-m", "gangline.cli.main", "run", "--on", "ray", *self.program)
        os.execv(sys.executable, command)


def recognise(environment: Mapping[str, str]) -> RayJob | None:
    """A job's own script; None: Ray did not start this process, or runs no script in it."""
    program = own_program() if _is_job(environment) else None
    return None if program is None else RayJob(program=program)


def _is_job(environment: Mapping[str, str]) -> bool:
    try:
        document = json.loads(environment.get(_JOB_VARIABLE, "{}"))
        return bool(document["metadata"][_JOB_KEY])
    except (ValueError, LookupError, TypeError):
        return False


def own_program() -> tuple[str, ...] | None:
    """What python was given to run this process; None where that is no file and no module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        name = spec.name.removesuffix(".__main__")
        return ("-m", name, *sys.argv[1:])
    if not sys.argv or not os.path.isfile(sys.argv[0]):
        return None
    return (sys.argv[0], *sys.argv[1:])
