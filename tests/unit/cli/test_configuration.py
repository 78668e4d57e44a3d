# SPDX-License-Identifier: Apache-2.0
"""One configuration of a run: from a file, from flags that go before it, and back from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gangline.cli.main import run_command
from gangline.files.config import CONFIG_FILE, config_of, read_config, read_document, write_config
from gangline.launch import prepared, resolve
from gangline.launch.program import Program
from gangline.protocol.launch import LAUNCH_VARIABLE, Launch
from gangline.spec.cluster import Cluster
from gangline.spec.config import (
    BatchConfig,
    EmulationConfig,
    ExchangeConfig,
    ManagerConfig,
    RunConfig,
    SurvivalConfig,
)
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.exchange.structure import Structure
from gangline.spec.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

FULL = RunConfig(
    run="digits",
    cluster=Cluster.of_speeds((1.0, 0.5)),
    batch=BatchConfig(shares=(2.0, 1.0), allocation="equal"),
    exchange=ExchangeConfig(structure=Structure.flat([0, 1]), sync="percentage(0.25)"),
    survival=SurvivalConfig(respawn=True, max_respawns=2, patience_s=4.0),
    manager=ManagerConfig(detector="paper-average"),
    emulation=EmulationConfig(faults=(Fault(worker=1, kind="kill", step=3),)),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    return tmp_path


@pytest.fixture
def dry_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*flags: str) -> Any:
        assert run_command(["run", "--dry-run", *flags, "train.py"]) == 0
        assert {path.name for path in folder.iterdir()} <= {"train.py", "run.toml", "run.json"}
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def refusal(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*flags: str) -> str:
        assert run_command(["run", *flags, "train.py"]) == 2
        assert not Path("runs").exists()
        return " ".join(capsys.readouterr().err.split())

    return run


def test_a_folder_gives_back_what_was_asked(tmp_path: Path) -> None:
    write_config(FULL, tmp_path)
    assert read_config(tmp_path) == FULL
    assert config_of(read_document(tmp_path / CONFIG_FILE)) == FULL


def test_a_folder_without_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot read the run's configuration"):
        read_config(tmp_path)
    (tmp_path / CONFIG_FILE).write_text("[]")
    with pytest.raises(LaunchError, match="is not a run's configuration"):
        read_config(tmp_path)


def test_without_flags_nothing_is_asked(dry_run: Callable[..., Any]) -> None:
    assert config_of(dry_run()) == config_of(dry_run("--json")) == RunConfig()


def test_flags_go_before_the_file(dry_run: Callable[..., Any]) -> None:
    Path("run.toml").write_text(
        "run = 'digits'\n[[cluster.nodes]]\nname = 'a'\nworkers = 3\n"
        "[survival]\nrespawn = true\nmax_respawns = 5\n[batch]\nallocation = 'equal'\n"
    )
    found = config_of(dry_run("--config", "run.toml"))
    assert found.num_workers == 3
    assert found.survival == SurvivalConfig(respawn=True, max_respawns=5)
    changed = dry_run("--config", "run.toml", "--max-respawns", "3", "--nodes", "2", "--name", "x")
    found = config_of(changed)
    assert (found.run, found.num_workers, found.batch.allocation) == ("x", 2, "equal")
    assert found.survival == SurvivalConfig(respawn=True, max_respawns=3), "though 3 is the default"


def test_what_is_printed_can_be_run_again(dry_run: Callable[..., Any]) -> None:
    flags = ("--speeds", "1,0.5", "--compress", "top=8-bit", "--structure", "flat", "--quota")
    first = dry_run(*flags)
    assert first["exchange"]["structure"]["compression"] == "8-bit"
    Path("run.json").write_text(json.dumps(first))
    assert dry_run("--config", "run.json") == first


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[batch]\nshare = [1]", "no key batch.share: did you mean shares?"),
        ("[speed]", "no key speed: there are run, cluster, batch, exchange"),
        (
            "[survival]\nmax_respawns = 'x'",
            "Expected `int`, got `str` - at `survival.max_respawns`",
        ),
        ("[survival]\nmax_respawns = 0", "survival.max_respawns must be at least 1, not 0"),
        ("[survival]\npatience_s = 0.5", "survival.patience_s must be 2 to 3600 seconds, not 0.5"),
        ("[survival]\nmax_away_s = 0", "survival.max_away_s must be finite and 1 or more"),
        ("[survival]\nnon_finite = 'x'", "survival.non_finite must be one of keep, evict"),
        ("[exchange]\ntransport = 'x'", "exchange.transport 'x' is not known"),
        ("[exchange]\nsync = 'x'", "sync 'x' is not known"),
        ("[exchange]\ncompress = ['x']", "exchange.compress x names no group"),
        ("[batch]\nshares = [nan]", "batch.shares nan: every share is a finite number"),
        ("[batch]\nshares = [1, 2]", "batch.shares 1,2 has 2 shares for 1 workers"),
        ("[batch]\nallocation = 'x'", "batch.allocation: no allocation 'x'"),
        ("[manager]\ndetector = 'x'", "manager.detector: no detector 'x'"),
        ("[wire]\nports = [5, 2]", "not 5-2 - at `wire`"),
        ("[[cluster.nodes]]\nname = 'a'\nspeed = 2", "node 'a': speed is a fraction"),
        ("[emulation]\nquota = 1", "Expected `bool`, got `int` - at `emulation.quota`"),
        ("batch = 3", "Expected `object`, got `int` - at `batch`"),
        ("[batch", "run.toml is not usable"),
    ],
)
def test_a_mistake_is_named_with_file_and_key(
    refusal: Callable[..., str], text: str, expected: str
) -> None:
    Path("run.toml").write_text(text)
    message = refusal("--config", "run.toml")
    assert "the run configuration run.toml is not usable" in message
    assert expected in message


def test_a_mistake_on_the_command_line_is_named_by_its_flag(refusal: Callable[..., str]) -> None:
    assert "--allocation: no allocation 'x'" in refusal("--allocation", "x")
    message = refusal("--compress", "top=8-bit")
    assert "planned while the job runs; give --structure, too" in message
    Path("run.toml").write_text("[batch]\nallocation = 'equal'")
    message = refusal("--config", "run.toml", "--shares", "1,2")
    assert message.startswith("error: --shares 1,2 has 2 shares for 1 workers")


def test_a_file_that_is_not_there_is_named(refusal: Callable[..., str]) -> None:
    assert "cannot read the run configuration run.toml: No such file" in refusal(
        "--config", "run.toml"
    )


def test_parts_that_do_not_fit_together_are_refused() -> None:
    relaxed = ExchangeConfig(transport="gloo", sync="none")
    with pytest.raises(UsageError, match=r"exchange.sync none and exchange.transport gloo"):
        RunConfig(exchange=relaxed).check()
    fault = EmulationConfig(faults=(Fault(worker=1, kind="kill", step=3),))
    with pytest.raises(UsageError, match=r"kill of worker 1, and the job has 1 workers"):
        RunConfig(emulation=fault).check()


def test_workers_are_told_what_concerns_them(folder: Path) -> None:
    with prepared(resolve(FULL), Program("train", (), script=Path("train.py"))) as job:
        first, second = job.launches()
    assert (first.run, job.respawns, len(job.speeds)) == ("digits", 2, 2)
    assert (first.faults, second.faults) == ((), FULL.emulation.faults)
    assert first.config.batch == FULL.batch
    assert first.config.exchange == FULL.exchange
    assert first.config.cluster == RunConfig().cluster
    assert Launch.from_environment(second.to_environment()) == second


def test_what_is_said_in_short_is_a_configuration() -> None:
    said = {
        **{"run": "r", "run_dir": "d", "worker": 0, "workers": 2, "token_file": "t"},
        **{"shares": [2, 1], "allocation": "equal", "transport": "wire-tcp", "resume": True},
        **{"structure": {"topology": "ring", "leader": 0, "members": [0, 1]}},
        **{"sync": {"kind": "percentage", "rate": 0.25, "levels": 2}, "non_finite": "evict"},
        **{"wire": {"connections": 2}, "max_away_s": 5.0},
    }
    launch = Launch.from_environment({LAUNCH_VARIABLE: json.dumps(said)})
    assert launch is not None
    config = launch.config
    assert config.batch == BatchConfig(shares=(2.0, 1.0), allocation="equal")
    assert config.exchange.tree == Structure.flat([0, 1])
    assert config.exchange.sync == "full/percentage(0.25)"
    assert (config.exchange.transport, config.wire.connections) == ("wire-tcp", 2)
    assert (config.checkpoint.resume, config.survival.max_away_s) == (True, 5.0)
    assert config.survival.non_finite == "evict"
