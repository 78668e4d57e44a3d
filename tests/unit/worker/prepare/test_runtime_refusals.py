# SPDX-License-Identifier: Apache-2.0
"""What `prepare` and `evaluate` refuse, and that the message says what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from runtime_jobs import alone as alone
from runtime_jobs import parts, samples
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)

import gangline
from gangline.spec.errors import UnsupportedError, UsageError
from gangline.spec.sync import parse_sync
from gangline.spec.view import Whole
from gangline.worker import api
from gangline.worker.job import Job
from gangline.worker.prepare.prepared import Prepared
from gangline.worker.prepare.refusals import check_apart, check_models
from gangline.worker.samples.order import SequentialOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def process_group() -> Iterator[None]:
    """torch.distributed with one process, for the wrappers that need it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def refuse(
    *objects: Any, match: str, kind: type[Exception] = UnsupportedError, **opts: Any
) -> None:
    with pytest.raises(kind, match=match):
        gangline.prepare(*objects, **opts)


def refuse_model(model: nn.Module, match: str, kind: type[Exception] = UnsupportedError) -> None:
    _, _, loader = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    refuse(model, optimizer, loader, match=match, kind=kind)


# --- models ------------------------------------------------------------------------------------------


def test_sync_batch_norm_is_refused_and_the_layer_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4))
    match = r"module '1' is a SyncBatchNorm.*sync_batchnorm=True.*plain BatchNorm.*GroupNorm"
    refuse_model(model, match)
    check_models([model], sync_batchnorm=True)


def test_data_parallel_is_refused() -> None:
    refuse_model(
        nn.DataParallel(nn.Linear(4, 1)),
        r"the model is wrapped in DataParallel: give prepare\(\) the plain model \(model\.module\)",
    )


@pytest.mark.usefixtures("process_group")
def test_distributed_data_parallel_is_refused() -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    refuse_model(model, r"wrapped in DistributedDataParallel.*model\.module")


@pytest.mark.usefixtures("process_group")
def test_distributed_tensors_are_refused_and_the_parameter_named() -> None:
    model = nn.Linear(4, 1)
    mesh = init_device_mesh("cpu", (1,))
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Replicate()]))
    refuse_model(model, r"parameter 'weight' is a DTensor.*whole on every worker")


def test_lazy_modules_are_refused_until_they_have_a_shape() -> None:
    model = nn.LazyLinear(1)
    refuse_model(
        model, r"parameter 'weight' of a lazy module has no shape yet: run one", UsageError
    )


def test_parameters_with_holes_are_refused() -> None:
    model = nn.Linear(4, 1)
    model.weight = nn.Parameter(torch.zeros(1, 8)[:, ::2])
    refuse_model(model, r"parameter 'weight' of shape \(1, 4\) has strides .*contiguous\(\)")


def test_parameters_that_overlap_are_refused() -> None:
    model = nn.Linear(4, 1)
    model.bias = nn.Parameter(torch.zeros(1).expand(3))
    refuse_model(model, r"parameter 'bias'.*overlap or leave holes.*before prepare\(\)")


def test_sparse_parameters_are_refused() -> None:
    model = nn.Linear(4, 1)
    model.extra = nn.Parameter(torch.zeros(2, 2).to_sparse())
    refuse_model(model, r"parameter 'extra' has layout torch\.sparse_coo.*leave this model out")


def test_an_expanded_buffer_is_no_obstacle() -> None:
    model, optimizer, loader = parts()
    model.register_buffer("table", torch.arange(4.0).expand(3, 4))
    gangline.prepare(model, optimizer, loader)
    assert torch.equal(model.table, torch.arange(4.0).expand(3, 4))


# --- optimizers --------------------------------------------------------------------------------------


def test_lbfgs_is_refused_when_it_accumulates_or_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, loader = parts()
    optimizer = torch.optim.LBFGS(model.parameters())
    refuse(model, optimizer, loader, accumulate=2, match=r"LBFGS needs.*leave out accumulate=")
    monkeypatch.setattr(api._job.session, "is_late", True)
    refuse(model, optimizer, loader, match=r"LBFGS evaluates the loss several.*one worker")


def test_an_optimizer_of_another_model_is_refused() -> None:
    model, _, loader = parts()
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters())
    match = (
        r"the Adam optimizer trains no parameter of the given models: give prepare\(\) the model"
    )
    refuse(model, optimizer, loader, match=match, kind=UsageError)


# --- loaders -----------------------------------------------------------------------------------------


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([])


class Sampling(DataLoader[Any]):
    """As PyG's NeighborLoader: it makes a batch from indices when called, and filters what it loads."""

    def __call__(self, index: list[int]) -> list[int]:
        return index

    def _get_iterator(self) -> Any:
        return super()._get_iterator()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Unsized(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Pairs(Sampler[list[int]]):
    """A batch sampler that draws what it is told to, and says that it draws two batches."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches or ([0, 1], [2, 3])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return 2


class Unending(Pairs):
    def __len__(self) -> int:
        raise ValueError("the number of batches cannot be known")


DATA = samples()
LOADERS = {
    "subclass": (
        lambda: OwnLoader(DATA, batch_size=4),
        r"the loader is a OwnLoader, which has its own __iter__: .*move the subclass's work into",
    ),
    "calling subclass": (
        lambda: Sampling(DATA, batch_size=4),
        r"a Sampling, which has its own _get_iterator: .*gangline\.batches.*batch = loader\(index\)",
    ),
    "iterable": (
        lambda: DataLoader(Stream(), batch_size=4),
        r"an IterableDataset cannot be cut.*__len__ and __getitem__",
    ),
    "single samples": (
        lambda: DataLoader(DATA, batch_size=None),
        r"batch_size=None, so it hands out single samples: set batch_size",
    ),
    "unsized batch sampler": (
        lambda: DataLoader(DATA, batch_sampler=Unending()),
        r"the batch sampler Unending has no usable __len__: .*sampler= and the size by global_batch=",
    ),
    "distributed batch sampler": (
        lambda: DataLoader(
            DATA,
            batch_sampler=BatchSampler(DistributedSampler(DATA, num_replicas=2, rank=0), 4, True),
        ),
        r"has a DistributedSampler: remove it",
    ),
    "distributed sampler": (
        lambda: DataLoader(
            DATA, batch_size=4, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)
        ),
        r"has a DistributedSampler: remove it; gangline cuts every global batch itself",
    ),
    "out of order": (
        lambda: DataLoader(DATA, batch_size=4, in_order=False),
        r"in_order=False: .*leave in_order at True",
    ),
    "no length": (
        lambda: DataLoader(Unsized(), batch_size=4, sampler=SequentialSampler(range(3))),
        r"the data set Unsized has no __len__: gangline must know how many samples",
    ),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_that_cannot_be_cut_are_refused(kind: str) -> None:
    make, match = LOADERS[kind]
    model, optimizer, _ = parts()
    refuse(model, optimizer, make(), match=match)


@pytest.mark.parametrize("kind", LOADERS)
def test_evaluation_loaders_that_cannot_be_cut_are_refused(kind: str) -> None:
    make, match = LOADERS[kind]
    with pytest.raises(UnsupportedError, match=match):
        gangline.evaluate(make())


def test_a_subclass_that_only_chooses_its_parts_is_taken() -> None:
    class Collating(DataLoader[Any]):
        def __init__(self, data: Any) -> None:
            super().__init__(data, batch_size=4, collate_fn=len)

    model, optimizer, _ = parts()
    *_, loader = gangline.prepare(model, optimizer, Collating(DATA))
    assert list(loader) == [4, 4, 4]
    assert list(gangline.evaluate(Collating(DATA))) == [4, 4, 4]


@pytest.mark.parametrize("option", ["global_batch", "max_share"])
def test_options_that_contradict_a_batch_sampler_are_refused(option: str) -> None:
    model, optimizer, _ = parts()
    loader = DataLoader(DATA, batch_sampler=Pairs())
    match = rf"{option}=4.*batch sampler Pairs.*eave out {option}="
    refuse(model, optimizer, loader, match=match, kind=UsageError, **{option: 4})


@pytest.mark.parametrize(
    ("batches", "match"),
    [
        (([0], [1], [2]), r"Pairs drew more batches, and its __len__ says 2: make the two agree"),
        (([0],), r"Pairs drew 1 batches, and its __len__ says 2"),
        (([0], []), r"Pairs drew an empty batch"),
        (([0], ["one"]), r"Pairs drew \['one'\]: only batches of whole numbers"),
    ],
    ids=["more", "fewer", "empty", "names"],
)
def test_batches_that_cannot_be_used_are_reported(batches: Any, match: str) -> None:
    model, optimizer, _ = parts()
    loader = DataLoader(DATA, batch_sampler=Pairs(*batches))
    *_, loader = gangline.prepare(model, optimizer, loader)
    with pytest.raises(UsageError, match=match):
        list(loader)


def test_a_batch_sampler_is_refused_where_groups_train_at_their_own_pace() -> None:
    model, optimizer, _ = parts()
    loader = DataLoader(DATA, batch_sampler=Pairs())
    refuse(model, optimizer, loader, sync="none", match=r"cannot be batches drawn by Pairs")


def test_an_empty_data_set_is_refused() -> None:
    model, optimizer, _ = parts()
    loader = DataLoader(TensorDataset(torch.zeros(0, 4)), batch_size=4)
    match = r"the data set is empty: there is nothing to train on"
    refuse(model, optimizer, loader, match=match, kind=UsageError)


class Endless(Sampler[int]):
    """A sampler that does not say how much it draws, as torch allows it."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Liar(Endless):
    """A sampler that draws less than it says."""

    def __len__(self) -> int:
        return 6


def test_a_sampler_without_length_is_refused() -> None:
    model, optimizer, _ = parts()
    loader = DataLoader(DATA, batch_size=4, sampler=Endless())
    refuse(model, optimizer, loader, match=r"Endless.*__len__")


def test_a_sampler_that_draws_another_number_than_it_says_is_reported() -> None:
    model, optimizer, _ = parts()
    *_, loader = gangline.prepare(model, optimizer, DataLoader(DATA, batch_size=4, sampler=Liar()))
    with pytest.raises(UsageError, match=r"Liar.*4.*6"):
        list(loader)


# --- groups that train at their own pace -------------------------------------------------------------


def test_a_sampler_that_draws_is_refused_where_groups_train_at_their_own_pace() -> None:
    model, optimizer, _ = parts()
    loader = DataLoader(DATA, batch_size=4, sampler=RandomSampler(DATA, replacement=True))
    refuse(
        model,
        optimizer,
        loader,
        sync="percentage(0.5)",
        match=(
            r"with sync='percentage\(0.5\)' the order of the samples cannot be drawn by "
            r"RandomSampler.*Use shuffle=True or no sampler, or train with sync='full'"
        ),
    )
    gangline.prepare(model, optimizer, loader, sync="full")


@pytest.mark.parametrize("shuffle", [False, True])
def test_plain_orders_are_taken_where_groups_train_at_their_own_pace(shuffle: bool) -> None:
    model, optimizer, _ = parts()
    gangline.prepare(model, optimizer, DataLoader(DATA, batch_size=4, shuffle=shuffle), sync="none")


def test_torchs_transports_are_refused_where_groups_train_at_their_own_pace() -> None:
    model, optimizer, _ = parts()
    apart, whole = (
        Prepared(models=[model], optimizers=[optimizer], stateful=(), sync=parse_sync(sync))
        for sync in ("flexible", "full")
    )
    with pytest.raises(UnsupportedError, match="over the transport wire or wire-tcp"):
        check_apart(apart, SequentialOrder(4), is_elastic=False)
    check_apart(whole, SequentialOrder(4), is_elastic=False)


def test_an_evaluation_that_draws_is_refused_where_groups_train_at_their_own_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Whole(team=0, first_rank=0, workers=2, first_sample=0, samples=8)
    monkeypatch.setattr(Job, "whole", property(lambda job: whole))
    loader = DataLoader(DATA, batch_size=4, sampler=RandomSampler(DATA, replacement=True))
    with pytest.raises(
        UnsupportedError, match=r"drawn by RandomSampler.*torch\.utils\.data\.Subset"
    ):
        gangline.evaluate(loader)
