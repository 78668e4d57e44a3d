# SPDX-License-Identifier: Apache-2.0
"""A leader is lost while leaders exchange compressed gradients: the others stay alike."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import judge, kill, run_with

from gangline.spec.event import ViewAdopted
from gangline.spec.exchange.compression import Compression
from tree_members import ring


@pytest.mark.slow
@pytest.mark.parametrize("name", ["powersgd(1)", "top-k(0.2)", "terngrad"])
def test_members_stay_equal_when_a_leader_is_killed(tmp_path: Path, name: str) -> None:
    tree = ring(ring(0, 1), ring(2, 3)).compressed("top", Compression.parse(name))
    setup, faults = Setup(loop="wide", samples=24), [kill(2, 3, "exchange")]
    outcome = run_with(tmp_path, setup, faults, workers=4, structure=tree)
    judge(outcome, setup, faults, is_exact=False)
    structures = {event.structure for event in outcome.of_kind(ViewAdopted)}
    assert structures == {str(tree), f"ring[{name}](ring(0*, 1), ring(3*))"}
