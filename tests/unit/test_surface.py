# SPDX-License-Identifier: Apache-2.0
"""What others rely on is written down in `surface.json`: a change of it is seen, and meant.

After a change that is meant: `python tests/unit/test_surface.py` writes the file anew.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

import gangline
from gangline.cli.main import app
from gangline.coordinator.kept.records import AnyRecord
from gangline.protocol.launch import LAUNCH_VARIABLE, Launch
from gangline.protocol.messages import FromCoordinator, FromWorker
from gangline.spec.event import AnyEvent

LAUNCH: dict[str, Any] = {
    "run": "r",
    "run_dir": "runs/r",
    "worker": 1,
    "workers": 2,
    "token_file": "runs/r/token",
    "coordinator": "ws://10.0.0.5:7700",
    "announced_in": "runs/r",
    "max_away_s": 5.0,
    "speed": 0.5,
    "shares": [2, 1],
    "transport": "wire-tcp",
    "wire": {"connections": 2},
    "allocation": "equal",
    "structure": {"topology": "ring", "leader": 0, "members": [0, 1]},
    "resume": True,
    "sync": {"kind": "percentage", "rate": 0.25, "levels": 2},
    "non_finite": "evict",
    "faults": [{"worker": 1, "kind": "kill", "step": 3}],
    "replaces": 0,
    "machine": "0123456789abcdef",
    "probe_steps": 4,
}
"""All that people who start workers themselves may say in GANGLINE_LAUNCH."""
FROZEN = Path(__file__).with_name("surface.json")


def verbs() -> dict[str, dict[str, str]]:
    """Each verb's flags and arguments, with the kind and the default of each."""
    command: Any = typer.main.get_command(app)
    plain = {name: verb for name, verb in command.commands.items() if not hasattr(verb, "commands")}
    parts = {
        f"{name} {part}": verb
        for name, group in command.commands.items()
        for part, verb in getattr(group, "commands", {}).items()
    }
    return {
        name: {
            " ".join([*parameter.opts, *parameter.secondary_opts]): described(parameter)
            for parameter in verb.params
        }
        for name, verb in {**plain, **parts}.items()
    }


def described(parameter: Any) -> str:
    """The kind and the default of a flag, in one line."""
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    kind = "switch" if getattr(parameter, "is_flag", False) else parameter.param_type_name
    is_many = ", many" if parameter.multiple or parameter.nargs == -1 else ""
    return f"{kind}, {'required' if parameter.required else f'default {default}'}{is_many}"


def tags(union: Any) -> list[str]:
    return sorted(kind.__struct_config__.tag for kind in get_args(union))


def surface() -> dict[str, Any]:
    """The whole of it."""
    return {
        "verbs": verbs(),
        "names": sorted(gangline.__all__),
        "launch": sorted(LAUNCH),
        "messages from a worker": tags(FromWorker),
        "messages from the coordinator": tags(FromCoordinator),
        "events": tags(AnyEvent),
        "journal records": tags(AnyRecord),
    }


@pytest.mark.parametrize("part", surface())
def test_what_others_rely_on_is_what_is_written_down(part: str) -> None:
    assert surface()[part] == json.loads(FROZEN.read_text())[part]


def test_nothing_else_is_written_down() -> None:
    assert json.loads(FROZEN.read_text()).keys() == surface().keys()


@pytest.mark.parametrize("field", LAUNCH)
def test_workers_started_by_other_means_may_say_what_is_documented(field: str) -> None:
    needed = ("run", "run_dir", "worker", "workers", "token_file")
    said = {name: LAUNCH[name] for name in (*needed, field)}
    assert Launch.from_environment({LAUNCH_VARIABLE: json.dumps(said)}) is not None


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(surface(), indent=1) + "\n")
