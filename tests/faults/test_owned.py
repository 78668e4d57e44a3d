# SPDX-License-Identifier: Apache-2.0
"""Jobs whose workers each have their own data: what is computed, what is used, who is lost."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
import test_served_exact
import test_teams_exact
import torch
from elastic_bodies import Setup, mlp
from elastic_jobs import TOLERANCE, assert_replays, hang, kill, run_with
from torch.utils.data import DataLoader, TensorDataset

from cases import quick_of
from gangline.spec.config import RunConfig
from gangline.spec.errors import UsageError
from gangline.spec.event import SamplesGone, UpdateApplied, UpdateVoided
from gangline.spec.sync import NESTEROV, parse_sync
from gangline.worker.prepare.ownership import check_owned
from gangline.worker.prepare.preparation import Options
from gangline.worker.samples.loader_order import batching_of

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

SETUP = Setup(
    samples=70, batch=13, epochs=2, loop="served_sgd", lengths=(37, 12, 21), batches=(5, 4, 3)
)


def varied(**changes: Any) -> Setup:
    return Setup(**{**vars(SETUP), **changes})


def used_by(outcome: Outcome) -> dict[int, dict[int, list[int]]]:
    """By worker and epoch: the samples that its loop was given."""
    found: dict[int, dict[int, list[int]]] = {}
    for worker, result in outcome.results.items():
        for (epoch, _), indices in sorted(result["used"].items()):
            found.setdefault(worker, {}).setdefault(epoch, []).extend(indices)
    return found


def assert_own(outcome: Outcome, setup: Setup) -> None:
    """Each worker goes over its own samples once per epoch, and nobody else does."""
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    used = used_by(outcome)
    for worker in outcome.results:
        first = sum(setup.lengths[:worker])
        own = list(range(first, first + setup.lengths[worker]))
        for epoch in range(setup.epochs):
            found = used.get(worker, {}).get(epoch, [])
            # What came too late is computed again, and the ledger says that it counted once.
            assert sorted(set(found) if outcome.of_kind(UpdateVoided) else found) == own


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "mode",
    quick_of(["bsp", "asp", "ssp(1)", "bsp(servers=2)", "asp(scale=plain)"], quick=["bsp"]),
)
def test_servers_make_one_update_of_what_each_computes_of_its_own(
    tmp_path: Path, monkeypatch: Any, mode: str
) -> None:
    sync = parse_sync(mode)
    assert sync.service is not None
    outcome = run_with(tmp_path, SETUP, [], sync=sync)
    assert outcome.exit_codes == [0] * 3, outcome.outputs
    assert_own(outcome, SETUP)
    updates = sorted(outcome.of_kind(UpdateApplied), key=lambda one: one.number)
    monkeypatch.setattr(test_served_exact, "SETUP", SETUP)
    replay = test_served_exact.Replay(outcome, SETUP.loop, sync.service)
    replay.run(updates)
    for name, expected in replay.model.named_parameters():
        found = outcome.results[0]["state"][f"0.{name}"]
        torch.testing.assert_close(found, expected.data, rtol=TOLERANCE, atol=TOLERANCE)
    if mode == "bsp":  # 5 of 12 samples, 4 and 3; and who has no more brings none
        first, *_ = updates
        weights = dict(zip(first.teams, first.weights, strict=True))
        assert weights == {0: 5 / 12, 1: 4 / 12, 2: 3 / 12}
        assert sorted(updates[3].teams) == [0, 2]
        assert updates[7].teams == (0,)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mode", quick_of(["local(2, strict)", "local(2)", "none"], quick=["none"]))
def test_merges_weigh_each_worker_by_the_samples_of_its_own(
    tmp_path: Path, monkeypatch: Any, mode: str
) -> None:
    """With `none`, and one epoch, that is FedAvg: the mean by n/N of what each makes of its own."""
    setup = varied(loop="plain", order="shuffled" if mode == "none" else "sequential")
    outcome = run_with(tmp_path, setup, [], sync=parse_sync(mode))
    assert outcome.exit_codes == [0] * 3, outcome.outputs
    assert_own(outcome, setup)
    monkeypatch.setattr(test_teams_exact, "SETUP", setup)
    sync = parse_sync(mode)
    replay = test_teams_exact.Replay(outcome, has_outer=sync.outer == NESTEROV)
    replay.orders_drawn = {
        (worker, epoch): order
        for worker, epochs in used_by(outcome).items()
        for epoch, order in epochs.items()
    }
    expected = replay.run()
    state = outcome.results[0]["state"]
    found = torch.cat([state[f"0.{name}"].reshape(-1) for name in mlp().state_dict()])
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    "mode", quick_of(["bsp", "backup(1)", "percentage(0.5)", "local(2)"], quick=["bsp"])
)
def test_the_samples_of_a_killed_worker_are_gone_with_it(tmp_path: Path, mode: str) -> None:
    loop = "served_sgd" if parse_sync(mode).service else "plain"
    setup = varied(loop=loop, epochs=3, think_s=0.02)
    outcome = run_with(tmp_path, setup, [kill(2, 2, "update")], sync=parse_sync(mode))
    assert outcome.exit_codes == [0, 0, -signal.SIGKILL], outcome.outputs
    (gone,) = outcome.of_kind(SamplesGone)
    assert (gone.worker, gone.epoch, gone.start, gone.stop) == (2, 0, 49, 70)
    assert_own(outcome, setup)
    assert_replays(outcome.folder)
    late = [one for one in outcome.ledger.windows if one.epoch > 0]
    assert late
    assert all(one.stop <= 49 for one in late)
    first, other = (outcome.results[worker]["state"] for worker in (0, 1))
    assert all(torch.equal(first[f"0.{name}"], other[f"0.{name}"]) for name in mlp().state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bsp", "asp", "local(2)"])
def test_who_comes_back_goes_on_with_its_own(tmp_path: Path, mode: str) -> None:
    """A worker hangs for longer than the others have patience, and is given up meanwhile."""
    loop = "served_sgd" if parse_sync(mode).service else "plain"
    setup = varied(
        loop=loop,
        samples=76,
        lengths=(30, 24, 22),
        epochs=6,
        think_s=0.05,
        wait={10: "worker 1 joined, taken to be alike"},
    )
    faults = [hang(1, 2, "forward", 3.5)]
    outcome = run_with(tmp_path, setup, faults, sync=parse_sync(mode))
    assert outcome.exit_codes == [0] * 3, outcome.outputs
    (gone,) = outcome.of_kind(SamplesGone)
    assert (gone.worker, gone.start, gone.stop) == (1, 30, 54)
    assert_replays(outcome.folder)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    assert [len(used_by(outcome)[1].get(epoch, [])) for epoch in (4, 5)] == [24, 24]
    states = [outcome.results[worker]["state"] for worker in range(3)]
    for name in mlp().state_dict():
        assert torch.equal(states[0][f"0.{name}"], states[1][f"0.{name}"])


@pytest.mark.parametrize("mode", quick_of(["asp", "local(2)", "bsp", "none"], quick=["local(2)"]))
def test_a_worker_without_samples_computes_nothing_and_has_the_model(
    tmp_path: Path, mode: str
) -> None:
    loop = "served_sgd" if parse_sync(mode).service else "plain"
    setup = varied(loop=loop, lengths=(40, 0, 30), batches=(5, 4, 3))
    outcome = run_with(tmp_path, setup, [], sync=parse_sync(mode))
    assert outcome.exit_codes == [0] * 3, outcome.outputs
    assert_own(outcome, setup)
    assert not outcome.steps_of(1)
    first, other = (outcome.results[worker]["state"] for worker in (0, 1))
    assert all(torch.equal(first[f"0.{name}"], other[f"0.{name}"]) for name in mlp().state_dict())


@pytest.mark.slow
def test_workers_that_disagree_on_whose_the_data_is_are_named(tmp_path: Path) -> None:
    outcome = run_with(tmp_path, Setup(loop="half_owned"), [])
    assert outcome.exit_codes == [0] * 3, outcome.outputs
    for result in outcome.results.values():
        assert result["found_after"]["error"].startswith(
            "MismatchError: worker 1 differs from worker 0 in data: 'worker' instead of 'shared'"
        )


@pytest.mark.slow
def test_it_goes_on_with_the_same_workers_only(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "again", "others")]
    for folder in folders:
        folder.mkdir()
    setup = varied(loop="resumed_adam", epochs=1, checkpoint=str(tmp_path / "kept"))
    first = run_with(folders[0], setup, [], sync=parse_sync("bsp"))
    assert first.exit_codes == [0] * 3, first.outputs
    longer = varied(loop="resumed_adam", epochs=2, checkpoint=setup.checkpoint)
    again = run_with(folders[1], longer, [], sync=parse_sync("bsp"))
    assert again.exit_codes == [0] * 3, again.outputs
    assert {worker: list(epochs) for worker, epochs in used_by(again).items()} == {
        0: [1],
        1: [1],
        2: [1],
    }
    other = varied(loop="resumed_adam", epochs=3, checkpoint=setup.checkpoint, lengths=(37, 13, 20))
    refused = run_with(folders[2], other, [], sync=parse_sync("bsp"))
    assert refused.exit_codes == [1] * 3
    for output in refused.outputs.values():
        assert "in data of workers: number 1 is 13 instead of 12. To do: start the same" in output


@pytest.mark.slow
def test_what_comes_late_is_computed_again_by_its_owner(tmp_path: Path) -> None:
    setup = varied(slow_worker=2)
    outcome = run_with(tmp_path, setup, [], sync=parse_sync("backup(1)"))
    assert outcome.exit_codes == [0] * 3, outcome.outputs
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    assert outcome.of_kind(UpdateVoided)


@pytest.mark.parametrize(
    ("sync", "options", "message"),
    [
        ("full", {}, "sync='bsp' makes the same updates"),
        ("bsp", {"global_batch": 8}, "global_batch= says how a global batch is cut"),
        ("bsp", {"shares": (1, 2)}, "leave it out"),
        ("full/bsp", {}, "choose one level"),
    ],
)
def test_what_cuts_the_data_of_all_is_refused(
    monkeypatch: Any, sync: str, options: dict[str, Any], message: str
) -> None:
    given = {
        "global_batch": None,
        "accumulate": 1,
        "stateful": (),
        "reduction": "mean",
        "weight": None,
        "shares": None,
        "allocation": None,
        "max_share": None,
    }
    loader = DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2)
    with pytest.raises(UsageError, match=message):
        check_owned(
            Options(**{**given, **options}), RunConfig(), batching_of(loader), parse_sync(sync)
        )
