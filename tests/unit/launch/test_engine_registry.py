# SPDX-License-Identifier: Apache-2.0
"""Engines by their names: which there are, which is chosen, and what does not belong to it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gangline.launch.engines.registry import find_engine, registered
from gangline.spec.config import EmulationConfig, HostsConfig, RunConfig
from gangline.spec.engines.engine import ENGINES, EngineConfig
from gangline.spec.errors import UsageError


def test_every_engine_that_can_be_asked_for_is_there() -> None:
    assert registered() == ENGINES
    for name in ENGINES:
        engine = find_engine(name)
        assert callable(engine.check)
        assert callable(engine.submit)
        assert callable(engine.prepared)


def test_an_engine_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys, gangline.launch; from gangline.launch.engines.registry import find_engine;"
        "before = 'gangline.launch.engines.hosts' in sys.modules; find_engine('hosts');"
        "print(before, 'gangline.launch.engines.hosts' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_hosts_file_means_the_engine_of_hosts() -> None:
    assert RunConfig().on == "local"
    assert RunConfig(hosts=HostsConfig(file="lab.toml")).on == "hosts"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (RunConfig(engine=EngineConfig(name="hosts")), "hosts.file belong together"),
        (
            RunConfig(engine=EngineConfig(name="local"), hosts=HostsConfig(file="lab.toml")),
            "hosts.file belong together",
        ),
        (
            RunConfig(hosts=HostsConfig(file="lab.toml"), emulation=EmulationConfig(quota=True)),
            "hosts.file and emulation.quota cannot be given together",
        ),
    ],
)
def test_what_does_not_belong_to_the_engine_is_refused(config: RunConfig, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        config.check()


def test_an_unknown_engine_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"'pbs' is not known; choose one of: local, hosts"):
        EngineConfig(name="pbs")
