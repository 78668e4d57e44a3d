# SPDX-License-Identifier: Apache-2.0
"""The calls of a script in a job of one: what they check, what they return, what they leave behind."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from runtime_jobs import alone as alone
from runtime_jobs import parts, samples
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler

import gangline
from gangline.spec.errors import UnsupportedError, UsageError
from gangline.worker import api

pytestmark = pytest.mark.usefixtures("alone")


def refuse(*objects: Any, match: str, **options: Any) -> None:
    with pytest.raises(UsageError, match=match):
        gangline.prepare(*objects, **options)


# --- what prepare is given ---------------------------------------------------------------------------


def test_every_call_asks_for_init_first() -> None:
    api.shutdown()
    loader = DataLoader(samples(), batch_size=4)
    calls = [
        gangline.rank,
        gangline.world_size,
        gangline.is_main,
        lambda: gangline.mean(1.0),
        lambda: gangline.evaluate(loader),
        lambda: gangline.prepare(*parts()),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"not set up yet: call gangline\.init\(\) first"):
            call()


def test_a_second_prepare_is_refused() -> None:
    gangline.prepare(*parts())
    refuse(*parts(), match=r"prepare\(\) was called twice: give all models.*to one call")


def test_a_prepare_that_failed_can_be_repeated() -> None:
    model, optimizer, loader = parts()
    refuse(model, optimizer, loader, accumulate=0, match="accumulate")
    assert gangline.prepare(model, optimizer, loader)[0] is model


def test_a_scheduler_among_the_objects_is_sent_to_stateful() -> None:
    model, optimizer, loader = parts()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    match = r"given a StepLR: it takes models, optimizers and one DataLoader.*stateful=\[…\]"
    refuse(model, optimizer, loader, scheduler, match=match)


def test_an_optimizer_that_torch_does_not_know_is_refused_with_what_to_do() -> None:
    class Own:
        def step(self) -> None: ...

        def zero_grad(self) -> None: ...

    model, _, loader = parts()
    match = r"given a Own: an optimizer must be a torch\.optim\.Optimizer.*prepare\(model, loader\)"
    refuse(model, Own(), loader, match=match)


EVERYTHING = r"model, optimizer, loader = gangline\.prepare\(model, optimizer, loader\)"


@pytest.mark.parametrize(
    ("chosen", "match"),
    [
        (
            [0, 1],
            rf"given no DataLoader\. .*{EVERYTHING}.*gangline\.batches\(length, global_batch=…\)",
        ),
        ([1, 2], rf"given no model\. Call it with everything that takes part: {EVERYTHING}$"),
        ([], rf"given no model and no DataLoader\. .*{EVERYTHING}"),
    ],
    ids=["loader", "model", "everything"],
)
def test_what_is_missing_is_said_with_the_corrected_call(chosen: list[int], match: str) -> None:
    everything = parts()
    refuse(*[everything[index] for index in chosen], match=match)


def test_the_corrected_call_names_as_many_objects_as_were_given() -> None:
    (model, optimizer, _), (other, _, _) = parts(), parts()
    refuse(model, other, optimizer, match=r"prepare\(model_1, model_2, optimizer, loader\)")


def test_a_second_loader_is_refused_with_the_ways_to_read_two() -> None:
    match = (
        r"given 2 DataLoaders: .*gangline\.evaluate\(loader\).*\(zip\).*pairs.*gangline\.batches"
    )
    refuse(*parts(), DataLoader(samples(), batch_size=2), match=match)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: nn.Parameter(torch.zeros(2)), r"given a Parameter: .*nn\.ParameterList"),
        (lambda: [nn.Linear(1, 1)], r"given a list: .*one by one, gangline\.prepare\(\*items\)"),
        (samples, r"given a TensorDataset: .*DataLoader\(data, batch_size="),
        (lambda: iter([]), r"given a list_iterator: .*gangline\.batches\(length, global_batch=…\)"),
    ],
    ids=["parameter", "list", "data set", "iterator"],
)
def test_other_objects_are_refused_with_what_to_give_instead(make: Any, match: str) -> None:
    model, optimizer, loader = parts()
    refuse(model, optimizer, loader, make(), match=match)


# --- loops without a DataLoader or an optimizer ------------------------------------------------------


def test_batches_are_lists_of_indices_before_and_after_prepare() -> None:
    model, optimizer, _ = parts()
    loader = gangline.batches(10, global_batch=4)
    assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    *_, prepared = gangline.prepare(model, optimizer, loader)
    assert list(prepared) == list(loader)
    assert len(prepared) == 3


def test_batches_take_the_options_of_a_data_loader() -> None:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(1)

    shuffled = list(gangline.batches(10, global_batch=4, shuffle=True, generator=generator()))
    expected = DataLoader(range(10), batch_size=4, shuffle=True, generator=generator())
    assert shuffled == [batch.tolist() for batch in expected]
    drawn = gangline.batches(10, global_batch=2, sampler=[7, 7, 3], drop_last=True)
    assert list(drawn) == [[7, 7]]
    assert list(gangline.evaluate(gangline.batches(5, global_batch=4))) == [[0, 1, 2, 3], [4]]


@pytest.mark.parametrize(
    ("length", "options", "match"),
    [
        (0, {"global_batch": 2}, r"length is a number of samples, at least 1, not 0"),
        (samples(), {"global_batch": 2}, r"length is a number of samples.*batches\(len\(data\)"),
        (4, {"global_batch": 0}, r"global_batch is a number of samples, at least 1, not 0"),
        (4, {"global_batch": 2, "sampler": [1], "shuffle": True}, r"leave out shuffle="),
    ],
)
def test_batches_that_cannot_be_are_refused(length: Any, options: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        gangline.batches(length, **options)


def test_batches_need_no_init() -> None:
    api.shutdown()
    assert list(gangline.batches(2, global_batch=2)) == [[0, 1]]


def test_an_optimizer_that_was_kept_from_prepare_is_refused() -> None:
    model, optimizer, loader = parts()
    gangline.prepare(model, loader)
    with pytest.raises(UsageError, match=r"a SGD optimizer updates the prepared model.*prepare\("):
        step(model, optimizer, torch.float32)
    other, free, _ = parts()
    step(other, free, torch.float32)  # of a model that is nobody's business
    api.shutdown()
    step(model, optimizer, torch.float32)


def test_windows_of_ones_own_are_refused_without_an_optimizer() -> None:
    model, _, loader = parts()
    gangline.prepare(model, loader)
    with pytest.raises(UnsupportedError, match=r"no_sync\(\) needs an optimizer.*accumulate=k"):
        gangline.no_sync()


def test_groups_at_their_own_pace_are_refused_without_an_optimizer() -> None:
    model, _, loader = parts()
    match = r"with sync='none' there must be an optimizer.*or train with sync='full'"
    refuse(model, loader, sync="none", match=match)


def test_groups_at_their_own_pace_are_refused_where_states_are_carried() -> None:
    model, optimizer, loader = parts()
    model.state = gangline.SampleState(12, 1)
    refuse(model, optimizer, loader, sync="none", match=r"a model cannot have a SampleState")


def test_a_table_of_states_is_a_plain_one_without_a_job() -> None:
    api.shutdown()
    state = gangline.SampleState(4, 2)
    state[[1, 3]] = torch.ones(2, 2, requires_grad=True)
    assert state.values.tolist() == [[0, 0], [1, 1], [0, 0], [1, 1]]
    read = state[torch.tensor([3, 0])]
    state.reset()
    assert read.tolist() == [[1, 1], [0, 0]]
    assert not state.values.any()
    assert list(state.state_dict()) == ["values"]
    with pytest.raises(UsageError, match=r"floating-point numbers, not torch\.int64"):
        gangline.SampleState(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"accumulate": 0}, r"accumulate is a number of parts, at least 1, not 0"),
        ({"reduction": "max"}, r"reduction must be one of mean, sum, not 'max'"),
        (
            {"reduction": "sum", "weight": len},
            r"a sum-reduced loss needs no weight: leave out weight=",
        ),
        ({"stateful": [3]}, r"stateful holds a int, which has no state_dict and load_state_dict"),
        ({"global_batch": 0}, r"global_batch must be at least 1, not 0"),
        (
            {"global_batch": 13},
            r"of 13 is larger than the data set of 12 samples: .*global_batch=12",
        ),
        ({"max_share": 0}, r"max_share is a number of samples, at least 1, not 0"),
        ({"allocation": "fair"}, r"'fair'.*balanced"),
        ({"shares": (1, 2)}, r"2 shares were given for 1 workers: give one share per worker"),
        ({"shares": (-1.0,)}, r"shares are numbers above 0, in any unit: \[-1\.0\]"),
        ({"shares": (0.0,)}, r"shares are numbers above 0"),
        ({"shares": (math.nan,)}, r"shares are numbers above 0"),
        ({"shares": (math.inf,)}, r"shares are numbers above 0"),
    ],
    ids=str,
)
def test_options_that_cannot_be_done_are_refused(options: dict[str, Any], match: str) -> None:
    refuse(*parts(), match=match, **options)


def test_state_that_cannot_be_sent_is_named_by_its_path() -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"history": [1, {2, 3}]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError

    with pytest.raises(UnsupportedError, match=r"\['history'\]\[1\] is a builtins\.set, which"):
        gangline.prepare(*parts(), stateful=[Odd()])


# --- what prepare returns ----------------------------------------------------------------------------


def test_models_and_optimizers_stay_the_objects_they_were() -> None:
    model, optimizer, loader = parts()
    keys, kinds = list(model.state_dict()), (type(model), type(optimizer))
    given_back = gangline.prepare(loader, optimizer, model)
    assert given_back[1] is optimizer
    assert given_back[2] is model
    assert list(model.state_dict()) == keys
    assert (type(model), type(optimizer)) == kinds
    assert not model._forward_hooks
    assert not model._backward_hooks


def test_a_plain_script_trains_as_if_gangline_were_not_there() -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> torch.Tensor:
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        return nn.utils.parameters_to_vector(model.parameters())

    torch.manual_seed(0)
    expected = train(*parts())
    torch.manual_seed(0)
    assert torch.equal(train(*gangline.prepare(*parts())), expected)


def test_the_prepared_loader_has_the_length_and_the_data_set_of_the_old_one() -> None:
    loader = gangline.prepare(*parts(14), global_batch=4, accumulate=3)[2]
    assert len(loader) == 4 * 3
    assert sum(1 for _ in loader) == 4 * 3
    assert len(loader.dataset) == 14


def test_every_third_batch_is_an_update_when_three_are_accumulated() -> None:
    assert gangline.is_update(), "before anything is prepared, every batch is one"
    loader = gangline.prepare(*parts(), accumulate=3)[2]
    assert [gangline.is_update() for _ in loader] == [False, False, True] * 3


def test_epochs_go_on_where_the_job_is() -> None:
    assert list(gangline.epochs(3)) == [0, 1, 2]
    loader = gangline.prepare(*parts())[2]
    list(loader)
    assert list(gangline.epochs(3)) == [1, 2]


def test_step_changes_nothing_when_the_window_is_not_complete() -> None:
    model, optimizer, loader = gangline.prepare(*parts(), accumulate=2)
    before = model.weight.detach().clone()
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        assert torch.equal(before, model.weight) is not gangline.is_update()
        before = model.weight.detach().clone()
        optimizer.zero_grad()


# --- metrics -----------------------------------------------------------------------------------------


def test_mean_refuses_weights_that_are_no_weights() -> None:
    with pytest.raises(UsageError, match=r"a weight is at least 0, not -1"):
        gangline.mean(1.0, weight=-1)
    with pytest.raises(UsageError, match=r"a weight is at least 0, not nan"):
        gangline.mean(1.0, weight=math.nan)


def test_mean_keeps_the_kind_of_its_value() -> None:
    assert gangline.mean(3, weight=2) == 3.0
    assert isinstance(gangline.mean(3), float)
    half = gangline.mean(torch.ones(2, 3, dtype=torch.float16, requires_grad=True))
    assert half.dtype == torch.float16
    assert half.shape == (2, 3)
    assert not half.requires_grad
    assert gangline.mean(torch.tensor([1, 2])).tolist() == [1.0, 2.0]


def test_a_call_is_made_anew_in_the_epoch_after_one_that_was_left_by_it() -> None:
    model, optimizer, loader = gangline.prepare(*parts())
    found = []
    for epoch in gangline.epochs(3):
        updates = 0
        for number, (x, y) in enumerate(loader):
            if gangline.any(epoch == 0 and number == 2):
                break
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            updates += 1
        found.append((updates, gangline.mean(float(epoch))))
    assert found == [(2, 0.0), (len(loader), 1.0), (len(loader), 2.0)]


@pytest.mark.parametrize("value", [0.2, 123456789.0, 1e10 + 0.5])
def test_numbers_keep_their_double_precision(value: float) -> None:
    assert gangline.mean(value) == gangline.sum(value) == value


def test_the_mean_of_nothing_is_nan() -> None:
    assert math.isnan(gangline.mean(5.0, weight=0))


def test_evaluate_hands_out_every_sample_once_and_drops_none() -> None:
    loader = DataLoader(samples(11), batch_size=4, shuffle=True, drop_last=True)
    batches = [x for x, _ in gangline.evaluate(loader)]
    assert [len(batch) for batch in batches] == [4, 4, 3]
    assert torch.equal(torch.cat(batches), loader.dataset.tensors[0])


def test_evaluate_keeps_to_the_samples_of_the_loaders_sampler() -> None:
    chosen = [1, 5, 7, 8, 10]
    loader = DataLoader(samples(11), batch_size=2, sampler=SubsetRandomSampler(chosen))
    found = torch.cat([x for x, _ in gangline.evaluate(loader)])
    expected = loader.dataset.tensors[0][chosen]
    assert sorted(found.tolist()) == sorted(expected.tolist())


# --- after prepare -----------------------------------------------------------------------------------


def step(model: nn.Module, optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> None:
    x, y = samples()[:4]
    optimizer.zero_grad()
    F.mse_loss(model(x.to(dtype)), y.to(dtype)).backward()
    optimizer.step()


def test_another_dtype_is_refused_after_prepare() -> None:
    model, optimizer, _ = gangline.prepare(*parts())
    model.double()
    match = (
        r"parameter 'bias' changed from torch\.float32 .* to torch\.float64 .* after prepare\(\): "
        r"call model\.to\(\.\.\.\) before prepare\(\)"
    )
    with pytest.raises(UnsupportedError, match=match):
        step(model, optimizer, torch.float64)


def test_channels_last_is_refused_after_prepare() -> None:
    _, _, loader = parts()
    model = nn.Conv2d(3, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gangline.prepare(model, optimizer, loader)
    model.to(memory_format=torch.channels_last)
    with pytest.raises(
        UnsupportedError, match=r"parameter 'weight' changed.*strides \(27, 9, 3, 1\)"
    ):
        optimizer.step()


def test_added_parameters_are_refused_after_prepare() -> None:
    _, optimizer, _ = gangline.prepare(*parts())
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    match = (
        r"parameters of the SGD optimizer changed after prepare\(\), as add_param_group does: add"
    )
    with pytest.raises(UnsupportedError, match=match):
        optimizer.step()


def test_replaced_parameters_are_refused_after_prepare() -> None:
    model, optimizer, _ = gangline.prepare(*parts())
    model.load_state_dict(nn.Linear(4, 1).state_dict(), assign=True)
    match = r"parameter 'weight' was replaced.*load with assign=False, or load first and prepare"
    with pytest.raises(UnsupportedError, match=match):
        step(model, optimizer, torch.float32)


class Counting(torch.optim.Optimizer):
    """Counts its steps, whether there are gradients or not."""

    count = 0

    def step(self, closure: Any = None, *, grad_scaler: Any = None) -> str:
        self.count += 1
        return "stepped"


def test_a_step_that_is_not_due_is_not_made_at_all() -> None:
    model, _, loader = parts()
    optimizer = Counting(model.parameters(), {"lr": 0.1})
    hooked: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: hooked.append(optimizer.count))
    model, optimizer, loader = gangline.prepare(model, optimizer, loader, accumulate=3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    answers = []
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        answers.append(optimizer.step())
        schedule.step()
    assert answers == [None, None, "stepped"] * 3
    assert hooked == [0, 1, 2]


def test_a_step_that_raises_leaves_the_next_one_alone() -> None:
    class Failing(Counting):
        def step(self, closure: Any = None) -> str:  # type: ignore[override]
            raise ZeroDivisionError

    model, _, loader = parts()
    optimizer = Failing(model.parameters(), {"lr": 0.1})
    model, optimizer, loader = gangline.prepare(model, optimizer, loader, accumulate=3)
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        if gangline.is_update():
            with pytest.raises(ZeroDivisionError):
                optimizer.step()
            assert model.weight.grad is not None
        else:
            assert optimizer.step() is None


@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_schedulers_and_the_optimizers_own_step_come_back(when: str) -> None:
    model, _, loader = parts()
    optimizer = Counting(model.parameters(), {"lr": 0.1})
    if when == "before":
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = vars(optimizer).get("step")
    gangline.prepare(model, optimizer, loader)
    assert "grad_scaler" in inspect.signature(optimizer.step).parameters
    if when == "after":
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    api.shutdown()
    assert when == "after" or vars(optimizer).get("step") is before
    assert optimizer.step() == "stepped"
    assert optimizer.count == 1


def test_new_values_in_the_same_form_are_fine_after_prepare() -> None:
    model, optimizer, _ = gangline.prepare(*parts())
    model.weight.data = torch.ones(1, 4)
    step(model, optimizer, torch.float32)
    nn.utils.vector_to_parameters(torch.zeros(5), model.parameters())
    step(model, optimizer, torch.float32)
    model.load_state_dict(nn.Linear(4, 1).state_dict())
    step(model, optimizer, torch.float32)


def test_shutdown_leaves_torch_and_the_objects_as_they_were() -> None:
    api.shutdown()
    plain = torch.autograd.backward
    model, optimizer, loader = parts()
    gangline.init()
    gangline.prepare(model, optimizer, loader)
    assert torch.autograd.backward is not plain
    assert inspect.signature(torch.autograd.backward) == inspect.signature(plain)
    api.shutdown()
    assert torch.autograd.backward is plain
    assert not model.weight._post_accumulate_grad_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    step(model, optimizer, torch.float32)
    api.shutdown()  # again: nothing is left to do


def test_init_again_changes_nothing() -> None:
    gangline.prepare(*parts())
    gangline.init()
    assert (gangline.rank(), gangline.world_size(), gangline.is_main()) == (0, 1, True)


def test_an_unknown_transport_is_refused() -> None:
    api.shutdown()
    with pytest.raises(UsageError, match=r"'pigeon' is not known; choose one of: .*gloo"):
        gangline.init(transport="pigeon")
