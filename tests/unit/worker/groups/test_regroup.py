# SPDX-License-Identifier: Apache-2.0
"""How the members of a new group become alike, when some of them, or all, have no state yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from checkpoint_jobs import INTRODUCTION
from torch import nn

from gangline.spec.errors import LeftBehindError
from gangline.spec.position import Position
from gangline.spec.sync import IN_STEP
from gangline.worker.checkpoint.files import CheckpointFolder
from gangline.worker.checkpoint.resuming import Start
from gangline.worker.checkpoint.state import RandomNumbers
from gangline.worker.groups.refounding import Refounding
from gangline.worker.groups.regroup import become_alike
from gangline.worker.groups.snapshot import Snapshot
from gangline.worker.prepare.prepared import Prepared
from wire_members import run_members

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.collectives import Group
    from gangline.collectives.wire import WireGroup

START = Position.at_start()
LATER = START._replace(step=40, epoch=2, start=8)


def make(rank: int) -> Prepared:
    """What each member's script made before it knew of the others: no two are alike."""
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, float(rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Prepared(
        models=[model], optimizers=[optimizer], stateful=(), sync=IN_STEP, evicts_wrong=False
    )


def never(group: Group) -> Start:
    raise AssertionError("somebody has the state")


def test_a_newcomer_copies_also_when_the_others_have_made_no_step_yet() -> None:
    def body(group: WireGroup) -> tuple[float, bool, int]:
        prepared = make(group.rank)
        truth = become_alike(
            group,
            INTRODUCTION,
            Snapshot(prepared),
            position=START,
            results={},
            has_state=group.rank == 1,
            found_anew=never,
        )
        return prepared.models[0].weight[0, 0].item(), truth.was_behind, truth.num_behind

    assert run_members(3, body) == [(1.0, True, 2), (1.0, False, 2), (1.0, True, 2)]


def test_newcomers_found_the_job_anew_when_nobody_has_its_state() -> None:
    def body(group: WireGroup) -> Position:
        def found_anew(asked: Group) -> Start:
            assert asked is group
            return Start(
                LATER,
                seed=1,
                orders={},
                gradients=None,
                source="",
                skipped=[],
                random=RandomNumbers(),
            )

        truth = become_alike(
            group,
            INTRODUCTION,
            Snapshot(make(group.rank)),
            position=START,
            results={},
            has_state=False,
            found_anew=found_anew,
        )
        assert truth.was_behind
        return truth.position

    assert run_members(2, body) == [LATER, LATER]


@pytest.mark.parametrize(
    ("has_folder", "is_team", "said"),
    [
        (False, False, "no checkpoint folder to go on from"),
        (True, False, "no checkpoint was written to"),
        (True, True, "other teams have gone on"),
    ],
)
def test_all_newcomers_say_that_the_state_is_lost_where_they_cannot(
    tmp_path: Path, has_folder: bool, is_team: bool, said: str
) -> None:
    def body(group: WireGroup) -> str:
        folder = CheckpointFolder(tmp_path) if has_folder else None
        refounding = Refounding(folder, make(group.rank), INTRODUCTION)
        with pytest.raises(LeftBehindError, match="the state of the job is lost") as error:
            refounding.begin(group, is_team=is_team)
        return str(error.value)

    assert all(said in text for text in run_members(2, body))
