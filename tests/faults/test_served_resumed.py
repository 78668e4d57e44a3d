# SPDX-License-Identifier: Apache-2.0
"""A job with parameter servers that ends early goes on from its checkpoint, optimizer and all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from elastic_jobs import run_with
from test_served import SETUP

from cases import quick_of
from gangline.spec.event import UpdateApplied
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "mode", quick_of(["asp", "bsp(servers=2)", "ssp(1, servers=2)"], quick=["asp"])
)
def test_the_servers_go_on_with_the_state_of_the_checkpoint(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "kept"
    setup = replace(SETUP, loop="resumed_adam", epochs=1, samples=96, checkpoint=str(folder))
    counts = []
    for number, epochs in enumerate((1, 2)):
        run = tmp_path / str(number)
        run.mkdir()
        outcome = run_with(run, replace(setup, epochs=epochs), [], workers=2, sync=parse_sync(mode))
        assert outcome.exit_codes == [0, 0], outcome.outputs
        counts.append(len(outcome.of_kind(UpdateApplied)))
        state = outcome.results[0]["state"]
        assert float(state["opt0.0.step"]) == sum(counts), "the updates before count, too"
    assert counts[1] < 1.5 * counts[0], "the first epoch was not made again"
