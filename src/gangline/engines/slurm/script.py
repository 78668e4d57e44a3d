# SPDX-License-Identifier: Apache-2.0
"""The script of a batch job: what it asks for, the run's configuration, and the command."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.machines.notice import SIGTERM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.spec.config import RunConfig
    from gangline.spec.engines.slurm import SlurmConfig

_MARGIN_S = 5
"""So long before Slurm ends the job, all of it must be over."""
_BODY = """
config=$(mktemp --suffix=.json)
cat > "$config" <<'CONFIG'
{config}
CONFIG
run_dir={run_dir}
resume=
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then resume=--resume; fi

# Slurm warns this script before the time is over: gangline then has the workers leave politely.
is_over=
{command} run --config "$config" --run-dir "$run_dir" $resume {program} &
pid=$!
trap 'kill -TERM "$pid"' TERM
trap 'is_over=1; kill -TERM "$pid"' USR1
wait "$pid"
code=$?
while kill -0 "$pid" 2>/dev/null; do wait "$pid"; code=$?; done
rm -f "$config"
{after}exit "$code"
"""
_REQUEUE = """\
if [ -n "$is_over" ] && [ "$code" -ne 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
"""


def batch_script(
    config: RunConfig, program: Sequence[str], *, name: str, run_dir: str | None, python: str
) -> str:
    """The whole script; nothing in it is secret."""
    asked = config.slurm
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    told = in_job(config)
    folder = (
        f'"runs/{name}-${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}"'
        if run_dir is None
        else shlex.quote(run_dir)
    )
    body = _BODY.format(
        config=msgspec.json.format(msgspec.json.encode(told), indent=1).decode(),
        run_dir=folder,
        command=f"{shlex.quote(python)} -m gangline.cli.main",
        program=shlex.join(program),
        after=_REQUEUE if asked.requeue else "",
    )
    head = "\n".join(f"#SBATCH {one}" for one in _asked(asked, name=name))
    return f"#!/bin/bash\n{head}\n{body}"


def in_job(config: RunConfig) -> RunConfig:
    """The same as it holds inside of the job: a SIGTERM is a notice that the time is nearly over."""
    survival = config.survival
    notices = tuple(dict.fromkeys((*survival.notices, SIGTERM)))
    return msgspec.structs.replace(
        config,
        survival=msgspec.structs.replace(
            survival, notices=notices, notice_s=float(config.slurm.warning_s - _MARGIN_S)
        ),
    )


def _asked(asked: SlurmConfig, *, name: str) -> Iterator[str]:
    yield f"--job-name={name}"
    yield f"--output={name}-{'%A_%a' if asked.array else '%j'}.out"
    yield "--open-mode=append"
    yield f"--signal=B:USR1@{asked.warning_s}"
    yield "--requeue" if asked.requeue else "--no-requeue"
    plain = {
        "time": asked.time,
        "partition": asked.partition,
        "account": asked.account,
        "array": asked.array,
        "nodes": asked.nodes,
        "ntasks-per-node": None if asked.components else asked.tasks_per_node or 1,
    }
    yield from (f"--{key}={value}" for key, value in plain.items() if value is not None)
    yield from asked.options
    for number, component in enumerate(asked.components):
        if number:
            yield "hetjob"
        yield component
