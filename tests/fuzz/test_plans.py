# SPDX-License-Identifier: Apache-2.0
"""Whatever is in a profile, a workload or a plan: it is planned, carried out or refused by name."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_files import FUZZ, damaged

from gangline.planning.planner import make_plan
from gangline.planning.synthetic import Shape, synthesize
from gangline.spec.errors import GanglineError
from gangline.spec.exchange.structure import Structure
from gangline.spec.plan import Plan
from gangline.spec.profile import ClusterProfile
from gangline.spec.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

WORKLOAD = Workload(global_batch=64, gradient_bytes=4_000_000)


@cache
def _sound() -> tuple[bytes, bytes]:
    """A profile and its plan, as files."""
    profile = synthesize(Shape.from_text("sites=2,racks=2,nodes=2"), rng=np.random.default_rng(1))
    plan = make_plan(profile, WORKLOAD, rng=np.random.default_rng(1))
    return profile.to_json(), msgspec.json.encode(plan)


@FUZZ
@given(data=st.data())
def test_a_profile_is_planned_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(data.draw(damaged(_sound()[0])))
    try:
        plan = make_plan(ClusterProfile.from_file(path), WORKLOAD, rng=np.random.default_rng(1))
    except GanglineError as error:
        assert str(error)  # noqa: PT017
    else:
        assert sum(plan.shares) == WORKLOAD.global_batch


@FUZZ
@given(data=st.data())
def test_a_plan_is_carried_out_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(data.draw(damaged(_sound()[1])))
    try:
        plan = Plan.from_file(path)
        Structure.from_plan(plan.root, {name: [i] for i, name in enumerate(plan.nodes)})
    except GanglineError as error:
        assert str(error)  # noqa: PT017


@FUZZ
@given(content=damaged(b"global_batch = 64\ngradient_bytes = 4e6\n"))
def test_a_workload_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "workload.toml"
    path.write_bytes(content)
    try:
        Workload.from_file(path)
    except GanglineError as error:
        assert str(path) in str(error)  # noqa: PT017


@pytest.mark.parametrize("depth", [40, 100_000])
def test_a_plan_that_is_nested_without_end_is_refused(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "plan.json"
    node = b'{"name":"g","topology":"ring","leader":"a","groups":['
    path.write_bytes(b'{"root":' + node * depth + b"]}" * depth + b"}")
    with pytest.raises(GanglineError, match=r"plan\.json"):
        Plan.from_file(path)
