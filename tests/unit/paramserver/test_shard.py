# SPDX-License-Identifier: Apache-2.0
"""A shard applies what was staged as a plain optimizer would, in the order of the entries."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam
from torch.optim.lr_scheduler import StepLR

from gangline.paramserver.service.optimizers import check_shardable, options_of
from gangline.paramserver.service.pushes import Push, Rows, copy_into, gradient_of
from gangline.paramserver.service.shard import Shard
from gangline.spec.errors import GradientError, MismatchError, UnsupportedError, UsageError
from gangline.spec.serving import Entry, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: Adam(p, lr=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01, amsgrad=True),
    "adagrad": lambda p: Adagrad(p, lr=0.1),
}


def parameters(count: int = 3, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(4, 3).to(dtype)) for _ in range(count)]


def gradients(seed: int, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(p.shape, generator=generator).to(p.dtype) for p in like)


def entry(number: int, *parts: tuple[int, int, float], staleness: int = 0) -> Entry:
    return Entry(number, tuple(Part(*part) for part in parts), staleness)


def plain_step(optimizer: Optimizer, like: Sequence[nn.Parameter], given: Sequence[Any]) -> None:
    for p, gradient in zip(like, given, strict=True):
        p.grad = None if gradient is None else gradient.clone()
    optimizer.step()


def same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_bitwise_a_plain_optimizer(maker: str, dtype: torch.dtype) -> None:
    own = parameters(dtype=dtype)
    optimizer = MAKERS[maker](own)
    shards = [Shard(n, i, own, MAKERS[maker](own)) for n, i in enumerate([(0, 2), (1,)])]
    for number in range(5):
        first, second = gradients(2 * number, own), gradients(2 * number + 1, own)
        for shard in shards:
            for team, given in enumerate((first, second)):
                chosen = tuple(given[i].clone() for i in shard.indices)
                shard.stage(team, number, Push(chosen, options_of(optimizer)))
            shard.apply([entry(number, (0, number, 0.25), (1, number, 0.75))])
        total = [(a * 0.25).add_(b, alpha=0.75) for a, b in zip(first, second, strict=True)]
        plain_step(optimizer, own, total)
    for shard in shards:
        assert same(shard.values(), [own[i].detach() for i in shard.indices])
        for index, state in shard.state().items():
            kept = optimizer.state[own[index]]
            assert kept.keys() == state.keys()
            assert all(
                torch.equal(torch.as_tensor(kept[k]), torch.as_tensor(state[k])) for k in kept
            )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_summed_wide_and_kept_narrow(dtype: torch.dtype) -> None:
    own = parameters(1, dtype)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0))
    first, second = gradients(0, own)[0], gradients(1, own)[0]
    shard.stage(0, 0, Push((first,)))
    shard.stage(1, 0, Push((second,)))
    shard.apply([entry(0, (0, 0, 0.3), (1, 0, 0.7))])
    total = (first.float() * 0.3 + second.float() * 0.7).to(dtype)
    assert shard.values()[0].dtype == dtype
    assert torch.equal(shard.values()[0], own[0].detach() - total)


def test_what_comes_twice_counts_once_and_what_is_void_is_dropped() -> None:
    own = parameters(1)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0))
    late, given = gradients(0, own), gradients(1, own)
    shard.stage(0, 0, Push(late))
    shard.stage(0, 1, Push(given))
    shard.stage(0, 1, Push(late))
    entries = [entry(0, (0, 1, 1.0))]
    shard.apply(entries)
    shard.stage(0, 1, Push(given))
    shard.stage(0, 0, Push(late))
    shard.apply(entries)
    assert shard.applied == 1
    assert torch.equal(shard.values()[0], own[0].detach() - given[0])
    assert not any(shard.export()["staged"].values())


def test_an_entry_that_is_missing_or_not_staged_is_an_error_and_changes_nothing() -> None:
    own = parameters(1)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0))
    shard.stage(0, 0, Push(gradients(0, own)))
    with pytest.raises(MismatchError, match="lacks update 0"):
        shard.apply([entry(1, (0, 0, 1.0))])
    with pytest.raises(MismatchError, match="team 1 at clock 0"):
        shard.apply([entry(0, (0, 0, 0.5), (1, 0, 0.5))])
    assert shard.applied == 0
    assert torch.equal(shard.values()[0], own[0].detach())


def test_a_parameter_without_gradient_is_left_alone() -> None:
    own = parameters(2)
    shard = Shard(0, (0, 1), own, SGD(own, lr=1.0, weight_decay=0.5))
    shard.stage(0, 0, Push((gradients(0, own)[0], None)))
    shard.stage(1, 0, Push((None, None)))
    shard.apply([entry(0, (0, 0, 0.5), (1, 0, 0.5))])
    assert not torch.equal(shard.values()[0], own[0].detach())
    assert torch.equal(shard.values()[1], own[1].detach())


def test_a_forgotten_team_is_not_known() -> None:
    own = parameters(1)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0))
    shard.stage(3, 0, Push(gradients(0, own)))
    shard.forget(3)
    assert shard.export()["staged"] == {}
    with pytest.raises(MismatchError, match="team 3 is not known"):
        shard.stage(3, 1, Push(gradients(0, own)))


def test_options_come_with_the_newest_part() -> None:
    own = parameters(2)
    groups = [{"params": own[:1], "lr": 0.1}, {"params": own[1:], "lr": 0.2}]
    optimizer = Adam(groups)
    schedule = StepLR(optimizer, 1, gamma=0.5)
    shard = Shard(0, (1,), own, optimizer)
    assert "step" not in vars(shard._updates._optimizer)
    for number in range(3):
        given = gradients(number, own)
        shard.stage(0, number, Push(given[1:], options_of(optimizer)))
        shard.apply([entry(number, (0, number, 1.0))])
        plain_step(optimizer, own, given)
        schedule.step()
    assert torch.equal(shard.values()[0], own[1].detach())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (({"speed": 1.0},), "'speed' of parameter group 0"),
        (({"lr": "fast"},), "'lr' of parameter group 0 to 'fast'"),
        (({"params": []},), "'params'"),
        (({"foreach": True},), "'foreach'"),
        (({"nesterov": 3},), "'nesterov'"),
    ],
)
def test_options_that_the_optimizer_does_not_have_are_refused(options: Any, said: str) -> None:
    own = parameters(1)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0))
    with pytest.raises(MismatchError, match=said):
        shard.stage(0, 0, Push(gradients(0, own), options))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "gradients of 0 parameters"),
        ((torch.zeros(3, 3),), r"layer.weight is given as \(3, 3\) of float32"),
        ((torch.zeros(4, 3, dtype=torch.float64),), "of float64"),
        ((Rows(torch.tensor([4]), torch.zeros(1, 3)),), "rows 4 to 4 of layer.weight"),
        ((Rows(torch.tensor([-1]), torch.zeros(1, 3)),), "rows -1 to -1"),
        ((Rows(torch.tensor([1, 1]), torch.zeros(2, 3)),), "must rise"),
        ((Rows(torch.tensor([1.0]), torch.zeros(1, 3)),), "int64"),
        ((Rows(torch.tensor([1]), torch.zeros(2, 3)),), r"\(2, 3\) of float32"),
    ],
)
def test_a_push_that_does_not_fit_is_refused(given: Any, said: str) -> None:
    own = parameters(1)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0), names=["layer.weight"])
    with pytest.raises(MismatchError, match=said):
        shard.stage(0, 0, Push(given))
    assert shard.export()["staged"] == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("by_rows", [False, True])
def test_what_is_not_finite_is_refused(value: float, by_rows: bool) -> None:
    own = parameters(1)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0), names=["layer.weight"])
    bad = torch.zeros(4, 3)
    bad[2, 1] = value
    given = Rows(torch.tensor([2]), bad[2:3]) if by_rows else bad
    with pytest.raises(GradientError, match=r"layer\.weight"):
        shard.stage(0, 0, Push((given,)))


def test_large_values_whose_sum_overflows_are_finite() -> None:
    own = [nn.Parameter(torch.zeros(4))]
    shard = Shard(0, (0,), own, SGD(own, lr=1.0))
    shard.stage(0, 0, Push((torch.full((4,), 3e38),)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_is_pulled_is_written_as_torch_would(dtype: torch.dtype) -> None:
    for parameter in (
        nn.Parameter(torch.zeros(4, 3, dtype=dtype)),
        torch.zeros(3, 4, dtype=dtype).T,
    ):
        version = parameter._version
        value = torch.randn(4, 3).to(dtype)
        with torch.no_grad():
            copy_into(parameter, value)
        assert torch.equal(parameter, value)
        assert parameter._version > version


SPARSE: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "sparse adam": lambda p: SparseAdam(p, lr=0.1),
    "adagrad": lambda p: Adagrad(p, lr=0.1),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's, of its own Adagrad
@pytest.mark.parametrize("maker", SPARSE)
def test_rows_are_applied_as_sparse_gradients(maker: str) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = SPARSE[maker](list(table.parameters()))
    shard = Shard(0, (0,), list(table.parameters()), optimizer)
    for number, words in enumerate(([1, 5, 5], [5, 9], [0, 1])):
        optimizer.zero_grad()
        table(torch.tensor(words)).square().sum().backward()
        pushed = gradient_of(table.weight.grad)
        assert isinstance(pushed, Rows)
        assert pushed.indices.tolist() == sorted(set(words))
        shard.stage(0, number, Push((pushed,)))
        shard.apply([entry(number, (0, number, 1.0))])
        table.weight.grad = table.weight.grad.coalesce()
        optimizer.step()
        assert torch.equal(shard.values()[0], table.weight.detach())
    assert torch.equal(shard.rows(0, torch.tensor([1, 9])), table.weight.detach()[[1, 9]])


def test_rows_of_several_teams_are_one_gradient_and_others_are_made_dense() -> None:
    own = parameters(1)
    given = [
        Rows(torch.tensor([0, 2]), torch.ones(2, 3)),
        Rows(torch.tensor([2]), torch.ones(1, 3)),
    ]
    for optimizer in (SGD(own, lr=1.0), SGD(own, lr=1.0, momentum=0.5)):
        shard = Shard(0, (0,), own, optimizer)
        for team, rows in enumerate(given):
            shard.stage(team, 0, Push((rows,)))
        shard.apply([entry(0, (0, 0, 0.5), (1, 0, 0.25))])
        change = own[0].detach() - torch.tensor([0.5, 0.0, 0.75, 0.0])[:, None]
        assert torch.equal(shard.values()[0], change)


@pytest.mark.parametrize("rows", [[10], [-1], [2, 1]])
def test_rows_that_are_not_there_are_not_pulled(rows: list[int]) -> None:
    own = parameters(1)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0))
    with pytest.raises(MismatchError, match="rows"):
        shard.rows(0, torch.tensor(rows))
    with pytest.raises(MismatchError, match="does not hold parameter 1"):
        shard.rows(1, torch.tensor([0]))


def test_differences_are_added() -> None:
    own = parameters(2)
    shard = Shard(0, (0, 1), own, None, mode="differences")
    rows = Rows(torch.tensor([1]), torch.ones(1, 3))
    shard.stage(0, 0, Push((torch.ones(4, 3), rows)))
    shard.apply([entry(0, (0, 0, 0.5))])
    assert torch.equal(shard.values()[0], own[0].detach() + 0.5)
    assert torch.equal(shard.values()[1][1], own[1].detach()[1] + 0.5)
    assert shard.state() == {}


def test_a_stale_gradient_counts_less() -> None:
    own = parameters(1)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0), rate="staleness")
    given = gradients(0, own)
    shard.stage(0, 0, Push(given))
    shard.apply([entry(0, (0, 0, 1.0), staleness=3)])
    assert torch.equal(shard.values()[0], own[0].detach() - given[0] * 0.25)
    assert shard.export()["options"][0]["lr"] == 1.0


def test_a_stale_gradient_is_compensated_by_what_its_team_pulled() -> None:
    own = [nn.Parameter(torch.zeros(2))]
    shard = Shard(0, (0,), own, SGD(own, lr=1.0), compensation=0.5)
    one = torch.ones(2)
    shard.stage(0, 0, Push((one,)))
    shard.stage(1, 0, Push((one,)))
    shard.apply([entry(0, (0, 0, 1.0))])  # nobody was before it: -1
    shard.apply([entry(1, (1, 0, 1.0))])  # computed at 0, applied at -1: 1 + 0.5 * (-1)
    assert shard.values()[0].tolist() == [-1.5, -1.5]
    shard.note_pull(1)
    shard.stage(1, 1, Push((Rows(torch.tensor([0]), torch.ones(1)),)))
    shard.apply([entry(2, (1, 1, 1.0))])
    assert shard.values()[0].tolist() == [-2.5, -1.5]


@pytest.mark.parametrize("maker", MAKERS)
def test_a_replica_goes_on_where_the_first_one_was(maker: str) -> None:
    own = parameters()
    first = Shard(0, (0, 2), own, MAKERS[maker](own), compensation=0.1)
    second = Shard(0, (0, 2), own, MAKERS[maker](own), compensation=0.1)
    like = [own[0], own[2]]
    first.stage(0, 0, Push(gradients(0, like), options_of(MAKERS[maker](own))))
    first.apply([entry(0, (0, 0, 1.0))])
    first.note_pull(0)
    first.stage(0, 1, Push(gradients(1, like)))
    second.load(copy.deepcopy(first.export()))
    for shard in (first, second):
        shard.apply([entry(1, (0, 1, 1.0))])
    assert second.applied == 2
    assert same(first.values(), second.values())


def test_a_reset_goes_back_and_keeps_the_optimizers_state() -> None:
    own = parameters(1)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0, momentum=0.5))
    shard.stage(0, 0, Push(gradients(0, own)))
    shard.apply([entry(0, (0, 0, 1.0))])
    shard.stage(0, 1, Push(gradients(1, own)))
    shard.reset([own[0].detach()], 0, history=1)
    assert shard.applied == 0
    assert torch.equal(shard.values()[0], own[0].detach())
    assert torch.equal(shard.state()[0]["momentum_buffer"], gradients(0, own)[0])
    with pytest.raises(MismatchError, match="has not pushed"):
        shard.apply([entry(0, (0, 1, 1.0))])
    with pytest.raises(MismatchError, match="parameter 0"):
        shard.reset([torch.zeros(1)], 0, history=1)


def test_values_that_were_pulled_do_not_change() -> None:
    own = parameters(1)
    shard = Shard(0, (0,), own, SGD(own, lr=1.0))
    before = shard.values()
    shard.stage(0, 0, Push(gradients(0, own)))
    shard.apply([entry(0, (0, 0, 1.0))])
    assert torch.equal(before[0], own[0].detach())
    assert shard.values()[0] is shard.values()[0]


class Custom(SGD):
    """A user's class, with something of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=1.0)
        self.trust = [2.0]
        self.watched = self.param_groups[0]["params"][0]

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad * self.trust[0])


def test_a_users_class_is_copied_whole_and_without_hooks() -> None:
    own = parameters(2)
    optimizer = Custom(own)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append(1))
    optimizer.step = lambda *_: called.append(2)  # type: ignore[method-assign]
    shard = Shard(0, (0,), own, optimizer)
    shard.stage(0, 0, Push(gradients(0, own)[:1]))
    shard.apply([entry(0, (0, 0, 1.0))])
    assert torch.equal(shard.values()[0], own[0].detach() - gradients(0, own)[0] * 2)
    copied = shard._updates._optimizer
    assert copied.watched is shard._updates.parameters[0]  # type: ignore[union-attr]
    assert copied.trust is not optimizer.trust  # type: ignore[union-attr]
    assert called == []


class WithClosure(SGD):
    def step(self, closure: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


def test_what_cannot_be_sharded_is_refused() -> None:
    own = parameters(1)
    check_shardable(Adam(own))
    strange = SGD(own, lr=1.0)
    strange.state["norm"] = {}  # type: ignore[index]
    for optimizer, said in (
        (LBFGS(own), "LBFGS computes the loss again"),
        (WithClosure(own), "WithClosure computes the loss again"),
        (strange, "SGD keeps state under 'norm'"),
        ([SGD(own)], "one torch optimizer, not with list"),
    ):
        with pytest.raises(UnsupportedError, match=said):
            check_shardable(optimizer)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "both"}, "mode"),
        ({"rate": "fast"}, "rate"),
        ({"compensation": -1.0}, "compensation"),
        ({"mode": "differences", "rate": "staleness"}, "differences"),
        ({"mode": "differences", "compensation": 1.0}, "differences"),
        ({"optimizer": None}, "needs an optimizer"),
        ({"optimizer": SGD([nn.Parameter(torch.zeros(1))])}, "does not update it"),
    ],
)
def test_options_that_say_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    own = parameters(1)
    optimizer = options.pop("optimizer", SGD(own, lr=1.0))
    with pytest.raises(UsageError, match=said):
        Shard(0, (0,), own, optimizer, **options)
