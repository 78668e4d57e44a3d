# SPDX-License-Identifier: Apache-2.0
"""How few samples a worker may be given where its model normalises by its batch, and who is warned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from runtime_jobs import alone as alone
from runtime_jobs import samples
from torch import nn
from torch.utils.data import DataLoader

import gangline
from gangline.spec import View
from gangline.spec.errors import UnsupportedError, UsageError
from gangline.worker.normalisation.batch_statistics import Normalisation, ShareWatch
from gangline.worker.normalisation.sync_batchnorm import batch_norms, check_synchronisable

if TYPE_CHECKING:
    from gangline.spec.event import Decision


def of(layers: int = 20, *, synced: bool = False, micros: int = 1) -> Normalisation:
    return Normalisation(
        name="ResNet", num_layers=layers, is_synchronised=synced, num_micros=micros
    )


def least(about: Normalisation, asked: int | None = None, **options: Any) -> int:
    given = {"global_batch": 32, "workers": 3, "has_shares": False, **options}
    return about.least_share(asked, **given)


@pytest.mark.parametrize(
    ("about", "options", "expected"),
    [
        pytest.param(of(0), {}, 1, id="no batch statistics"),
        pytest.param(of(synced=True), {}, 1, id="synchronised"),
        pytest.param(of(), {}, 8, id="enough for all"),
        pytest.param(of(), {"global_batch": 16}, 5, id="as far as the batch goes"),
        pytest.param(of(), {"global_batch": 6}, 2, id="the fewest"),
        pytest.param(of(micros=2), {"global_batch": 64}, 16, id="in each of two parts"),
        pytest.param(of(), {"has_shares": True}, 2, id="somebody chose the shares"),
        pytest.param(of(), {"asked": 4}, 4, id="asked for"),
        pytest.param(of(), {"asked": 4, "has_shares": True}, 4, id="asked for, with shares"),
        pytest.param(of(0), {"asked": 3}, 3, id="asked for without batch statistics"),
        pytest.param(of(synced=True), {"asked": 1}, 1, id="one is enough when synchronised"),
    ],
)
def test_the_least_share_is(about: Normalisation, options: dict[str, Any], expected: int) -> None:
    assert least(about, **options) == expected


@pytest.mark.parametrize(
    ("about", "options", "match"),
    [
        (of(), {"global_batch": 5}, r"global batch of 5 .* 3 workers .*global_batch=6.*sync_batch"),
        (of(), {"asked": 1}, r"min_share=1 .*at least min_share=2, or sync_batchnorm=True"),
        (
            of(0),
            {"asked": 16},
            r"32 cannot give each of 3 workers min_share=16 .*global_batch=48, at most "
            r"min_share=10, or start at most 2 workers",
        ),
    ],
)
def test_a_least_share_that_cannot_be_is_refused(
    about: Normalisation, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        least(about, **options)


class Log:
    def __init__(self) -> None:
        self.events: list[Decision] = []

    def record(self, event: Decision) -> None:
        self.events.append(event)


def view(*shares: int) -> View:
    return View(number=3, members=tuple(range(len(shares))), shares=shares, reason="a test")


def test_small_shares_are_warned_of_once_with_the_numbers() -> None:
    log = Log()
    watch = ShareWatch(cast("Any", log), of())
    watch.look(view(12, 10, 10))
    match = r"ResNet has 20 BatchNorm layers.* 28, 2, 2 of a batch of 32: .*sync_batchnorm=True"
    with pytest.warns(UserWarning, match=match):
        watch.look(view(28, 2, 2))
    watch.look(view(29, 2, 1))  # a second warning would be an error here
    (event,) = log.events
    assert event.what == "small_shares"
    assert event.numbers["smallest_share"] == 2
    assert "28, 2, 2" in event.reason


@pytest.mark.parametrize(
    ("about", "shares"),
    [
        pytest.param(of(0), (30, 1, 1), id="no batch statistics"),
        pytest.param(of(synced=True), (30, 1, 1), id="synchronised"),
        pytest.param(of(), (4,), id="one worker"),
        pytest.param(of(), (16, 16, 0), id="a worker without samples"),
        pytest.param(of(micros=2), (16, 16), id="enough in each part"),
    ],
)
def test_nothing_is_said_when_nothing_is_lost(
    about: Normalisation, shares: tuple[int, ...]
) -> None:
    ShareWatch(cast("Any", Log()), about).look(view(*shares))


def test_parts_of_an_accumulation_window_count_one_by_one() -> None:
    with pytest.warns(UserWarning, match="12, 12 of a batch of 24, each in 2 parts"):
        ShareWatch(cast("Any", Log()), of(micros=2)).look(view(12, 12))


# --- what prepare says -------------------------------------------------------------------------------


def prepare(model: nn.Module, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return gangline.prepare(model, optimizer, DataLoader(samples(), batch_size=4), **options)


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"min_share": 0}, "min_share is at least 1 sample, not 0"),
        ({"min_share": 3, "max_share": 2}, "max_share=2 is below min_share=3"),
        ({"min_share": 5}, r"global batch of 4 cannot give each of 1 workers min_share=5"),
        ({"max_share": 1}, r"max_share=1 leaves this worker a single sample.*BatchNorm"),
        ({"sync_batchnorm": True, "non_finite": "evict"}, r"evict.* cannot go with sync_batchnorm"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        prepare(normed(), **options)


class Own(nn.BatchNorm1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def test_a_layer_with_a_forward_of_its_own_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3), Own(3))
    with pytest.raises(
        UnsupportedError, match=r"module '1' is a Own with a forward\(\) of its own"
    ):
        check_synchronisable(batch_norms([model]))


def test_a_layer_that_two_models_share_counts_once() -> None:
    shared = nn.BatchNorm1d(3)
    first, second = nn.Sequential(shared), nn.Sequential(nn.Linear(3, 3), shared)
    assert [name for name, _ in batch_norms([first, second])] == ["model 0: 0"]


@pytest.mark.usefixtures("alone")
def test_the_model_is_torch_s_own_when_the_job_is_one_process() -> None:
    torch.manual_seed(0)
    model, plain = normed(), normed()
    plain.load_state_dict(model.state_dict())
    model, optimizer, loader = prepare(model, sync_batchnorm=True)
    assert [type(module) for module in model.modules()] == [type(m) for m in plain.modules()]
    for x, _ in loader:
        y, wanted = model(x), plain(x)
        assert torch.equal(y, wanted)
        assert type(y.grad_fn) is type(wanted.grad_fn)
        y.sum().backward()
        optimizer.zero_grad()
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
