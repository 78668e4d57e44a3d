# SPDX-License-Identifier: Apache-2.0
"""Pushes to parameter servers in fewer bytes, in jobs of real processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from elastic_jobs import kill, run_with
from test_served import assert_sound
from test_served_exact import SETUP
from test_served_loops import assert_replayed

from cases import quick_of
from gangline.spec.exchange.compression import Compression
from gangline.spec.exchange.structure import Structure
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

LOOP = "served_adam"


def coded(name: str) -> Structure:
    return Structure.flat((0, 1, 2)).compressed("top", Compression.parse(name))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("name", "mode", "killed"),
    quick_of(
        [
            (name, mode, killed)
            for name in ("8-bit", "1-bit", "top-k(0.1)")
            for mode in ("bsp", "asp(servers=2)", "asp(pull=forward)")
            for killed in ((), (0,))
        ],
        quick=[("1-bit", "bsp", ())],
    ),
)
def test_every_sample_counts_once_and_the_servers_get_what_was_coded(
    tmp_path: Path, name: str, mode: str, killed: tuple[int, ...]
) -> None:
    setup = replace(SETUP, loop=LOOP, think_s=0.01)
    faults = [kill(worker, 4, "update") for worker in killed]
    sync = parse_sync(mode)
    outcome = run_with(tmp_path, setup, faults, structure=coded(name), sync=sync)
    assert_sound(outcome, setup, killed=killed)
    if not killed and "forward" not in mode:
        with pytest.raises(AssertionError, match="not close"):  # something was left out
            assert_replayed(outcome, LOOP, mode)


@pytest.mark.slow
def test_a_codec_that_servers_cannot_read_is_refused(tmp_path: Path) -> None:
    setup = replace(SETUP, loop=LOOP)
    outcome = run_with(tmp_path, setup, [], structure=coded("powersgd(2)"), sync=parse_sync("bsp"))
    assert all(code not in (0, None) for code in outcome.exit_codes)
    assert any("powersgd" in one and "no codec" in one for one in outcome.outputs.values())
