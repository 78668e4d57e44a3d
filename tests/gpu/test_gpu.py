# SPDX-License-Identifier: Apache-2.0
"""What only a machine with a CUDA device can show: `pytest -m gpu tests/gpu`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from bodies_gpu import (
    CLASSES,
    FEATURES,
    Case,
    build,
    flat_parameters,
    host_seconds,
    message_of_init,
    train,
    train_alone,
)
from torch import nn
from torch._C._distributed_c10d import HashStore

from gangline.collectives import GroupKey
from gangline.collectives.hierarchy.group import TreeGroup
from gangline.collectives.hierarchy.levels import RingLevel
from gangline.collectives.hierarchy.seats import seats_of
from gangline.collectives.nccl import NcclGroup
from gangline.eventlog import read_run
from gangline.spec.errors import ExchangeAborted
from gangline.spec.event import StepDone
from gangline.spec.exchange.compression import Compression
from gangline.spec.exchange.structure import Structure
from gangline.worker.groups.snapshot import Snapshot
from gangline.worker.prepare.handshake import copy_value
from gangline.worker.prepare.prepared import Prepared
from wire_members import SHARED, TCP, run_members

if TYPE_CHECKING:
    from gangline.collectives import Group
    from gangline.collectives.wire import WireOptions
    from gangline.testing import WorkerPool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GPU, CPU = "cuda", "cpu"
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


# --- training ---------------------------------------------------------------------------------------


def check_exact(pool: WorkerPool, case: Case, *, transport: str | None = None) -> None:
    """All workers have the parameters of one process on the CPU, after every step."""
    expected = train_alone(replace(case, devices=(CPU,))).parameters
    outcomes = pool.run(train, len(case.devices), args=(case,), transport=transport, deadline_s=120)
    for outcome in outcomes:
        torch.testing.assert_close(
            outcome.parameters, expected, rtol=0, atol=TOLERANCES[case.dtype]
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_gradient_is_one_process_s_when_one_worker_has_a_gpu(
    dtype: torch.dtype, worker_pool: WorkerPool
) -> None:
    case = Case(devices=(GPU, CPU, CPU), shares=(5.0, 2.0, 1.0), dtype=dtype)
    check_exact(worker_pool, case)


@pytest.mark.parametrize("transport", ["wire", "wire-tcp", "gloo"])
def test_the_gradient_is_one_process_s_when_workers_share_a_gpu(
    transport: str, worker_pool: WorkerPool
) -> None:
    case = Case(devices=(GPU, GPU), shares=(3.0, 1.0), dtype=torch.float64)
    check_exact(worker_pool, case, transport=transport)


def test_the_gradient_is_one_process_s_when_batches_are_copied_ahead(
    worker_pool: WorkerPool,
) -> None:
    case = Case(devices=(GPU, GPU), shares=(3.0, 1.0), dtype=torch.float64, is_ahead=True)
    check_exact(worker_pool, case)


def test_the_gradient_is_one_process_s_when_gloo_joins_cpu_and_gpu(worker_pool: WorkerPool) -> None:
    case = Case(devices=(CPU, GPU), shares=(1.0, 3.0), dtype=torch.float64)
    check_exact(worker_pool, case, transport="gloo")


@pytest.mark.parametrize("devices", [(GPU, CPU, CPU), (GPU, GPU)], ids=str)
@pytest.mark.parametrize("transport", ["wire", "gloo"])
def test_batch_statistics_are_one_process_s_when_a_worker_has_a_gpu(
    devices: tuple[str, ...], transport: str, worker_pool: WorkerPool
) -> None:
    case = Case(
        devices=devices, shares=(5.0, 2.0, 1.0)[: len(devices)], dtype=torch.float64, synced=True
    )
    check_exact(worker_pool, case, transport=transport)


def test_batch_statistics_of_half_precision_stay_equal(worker_pool: WorkerPool) -> None:
    case = Case(devices=(GPU, GPU), shares=(3.0, 1.0), half=True, synced=True)
    first, second = worker_pool.run(train, 2, args=(case,), deadline_s=120)
    assert first.parameters.isfinite().all()
    assert torch.equal(first.parameters, second.parameters)


def test_workers_sharing_a_gpu_are_bit_equal_when_they_have_trained(
    worker_pool: WorkerPool,
) -> None:
    first, second = worker_pool.run(train, 2, args=(Case(devices=(GPU, GPU)),), deadline_s=120)
    assert torch.equal(first.parameters, second.parameters)


def test_scaled_half_precision_trains_as_full_precision_does(worker_pool: WorkerPool) -> None:
    case = Case(devices=(GPU, GPU), shares=(3.0, 1.0), half=True)
    expected = train_alone(replace(case, devices=(CPU,), half=False)).parameters
    first, second = worker_pool.run(train, 2, args=(case,), deadline_s=120)
    assert torch.equal(first.parameters, second.parameters)
    start = flat_parameters(build(case))
    moved, error = expected[-1] - start, first.parameters[-1] - expected[-1]
    assert error.norm() < 0.05 * moved.norm()


def test_all_workers_skip_a_step_when_the_scale_is_too_large(worker_pool: WorkerPool) -> None:
    case = Case(devices=(GPU, GPU), shares=(3.0, 1.0), half=True, scale=2.0**40)
    first, second = worker_pool.run(train, 2, args=(case,), deadline_s=120)
    assert first.scale == second.scale < case.scale
    assert torch.equal(first.parameters, second.parameters)
    start = flat_parameters(build(case))
    assert torch.equal(first.parameters[0], start), "the first step overflows and is skipped"


def test_the_gpu_gets_the_larger_share_when_the_allocation_is_balanced(
    worker_pool: WorkerPool,
) -> None:
    case = Case(
        devices=(GPU, CPU, CPU), samples=8192, batch=256, epochs=2, width=1536, keeps_all=False
    )
    outcomes = worker_pool.run(train, 3, args=(case,), deadline_s=150)
    first, last = ([outcome.sizes[step] for outcome in outcomes] for step in (0, -1))
    assert max(first) - min(first) <= 1, "nobody knows the speeds yet"
    assert last[0] > 2 * max(last[1:]), last
    assert sum(last) == case.batch


def test_the_time_of_a_step_is_the_device_s_when_the_host_runs_ahead(
    worker_pool: WorkerPool,
) -> None:
    case = Case(devices=(GPU, GPU), sleeps=True)
    worker_pool.run(train, 2, args=(case,), deadline_s=120)
    steps = [event for event in read_run(worker_pool.run_dir) if isinstance(event, StepDone)]
    assert steps
    assert min(step.compute_s for step in steps) > 0.02


def test_a_worker_that_is_alone_runs_ahead_of_its_device(worker_pool: WorkerPool) -> None:
    case = Case(devices=(GPU,), sleeps=True, samples=32 * 10)
    (took,) = worker_pool.run(host_seconds, 1, args=(case,), deadline_s=120)
    assert max(took[3:8]) < 0.02, took
    steps = [event for event in read_run(worker_pool.run_dir) if isinstance(event, StepDone)]
    assert len(steps) == 10
    assert min(step.compute_s for step in steps) > 0.02, "the device's time, not the host's"


# --- state ------------------------------------------------------------------------------------------


def _trained(device: str, *, steps: int) -> Prepared:
    torch.manual_seed(steps)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, FEATURES, device=device)).sum().backward()
        optimizer.step()
    return Prepared(models=[model], optimizers=[optimizer], stateful=[])


@pytest.mark.parametrize("devices", [(GPU, CPU), (CPU, GPU), (GPU, GPU)], ids=str)
def test_a_worker_becomes_like_another_whatever_their_devices(devices: tuple[str, str]) -> None:
    both = [_trained(device, steps=rank + 1) for rank, device in enumerate(devices)]

    def copy_first(group: Group) -> None:
        snapshot = Snapshot(both[group.rank])
        exported = snapshot.export() if group.rank == 0 else None
        state = copy_value(group, exported, root=0)
        if group.rank:
            snapshot.load(state)

    run_members(2, copy_first)
    states = [[*one.models[0].state_dict().values(), *_moments(one.optimizers[0])] for one in both]
    for mine, theirs, device in zip(*states, [devices[1]] * len(states[0]), strict=True):
        assert theirs.device.type == device or theirs.dim() == 0
        assert torch.equal(mine.cpu(), theirs.cpu())


def _moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in state.values()]


# --- compression ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bf16!", "8-bit!", "top-k(0.1)!", "1-bit!", "powersgd(2)!"])
def test_members_are_bit_equal_where_only_some_compress_on_a_gpu(name: str) -> None:
    structure = Structure.flat(range(3)).compressed("top", Compression.parse(name))

    def exchanged(group: Group) -> torch.Tensor:
        (seat,) = seats_of(structure, group.rank)
        level = RingLevel(seat, group, seed=0)
        tree = TreeGroup(group.key, rank=group.rank, size=3, levels=[level], pairs=None)
        generator = torch.Generator().manual_seed(group.rank)
        results = []
        for _ in range(3):
            values = torch.randn(1_000_003, generator=generator)
            tensor = values.to(CPU if group.rank == 2 else GPU)
            tree.all_reduce_unit(tensor, None, unit=0)
            results.append(tensor.cpu())
        return torch.stack(results)

    first, *others = run_members(3, exchanged)
    assert first.isfinite().all()
    for other in others:
        assert torch.equal(first, other)


# --- wire -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [SHARED, TCP], ids=["shared", "tcp"])
@pytest.mark.parametrize("length", [0, 1, 1000, 3_000_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_wire_sums_tensors_of_a_gpu(dtype: torch.dtype, length: int, options: WireOptions) -> None:
    def member(group: Group) -> tuple[torch.Tensor, list[int]]:
        tensor = (torch.arange(length, device=GPU) % 100 + group.rank).to(dtype)
        header = np.array([group.rank, -group.rank], dtype=np.int64)
        group.all_reduce(tensor, header)
        return tensor, header.tolist()

    results = run_members(3, member, options=options)
    expected = (3 * (torch.arange(length, device=GPU) % 100) + 3).to(dtype)
    for tensor, header in results:
        assert torch.equal(tensor, expected)
        assert header == [2, 0]


def test_wire_moves_tensors_of_a_gpu() -> None:
    def member(group: Group) -> None:
        own = torch.full((2, 3), float(group.rank), device=GPU)
        rows = group.all_gather(own)
        assert [float(row[1, 2]) for row in rows] == [0.0, 1.0]
        assert all(row.is_cuda for row in rows)
        part = group.reduce_scatter(torch.arange(5.0, device=GPU))
        assert part.is_cuda
        assert part.tolist() == ([0.0, 2.0, 4.0] if group.rank == 0 else [6.0, 8.0])
        group.broadcast(own.t(), root=1)  # not contiguous
        assert own.eq(1).all()
        if group.rank == 0:
            group.send(torch.arange(7, device=GPU), to=1)
        else:
            received = torch.zeros(7, dtype=torch.int64, device=GPU)
            group.receive(received, source=0)
            assert received.tolist() == list(range(7))

    run_members(2, member)


# --- NCCL -------------------------------------------------------------------------------------------


@pytest.fixture
def nccl() -> NcclGroup:
    return NcclGroup(GroupKey("run", 0, 0), store=HashStore(), rank=0, size=1, timeout_s=30)


@pytest.mark.parametrize("device", [GPU, CPU])
def test_nccl_exchanges_tensors_of_either_memory(nccl: NcclGroup, device: str) -> None:
    tensor, header = torch.arange(6.0, device=device).view(2, 3), np.array([3, -4])
    nccl.all_reduce(tensor, header)
    nccl.all_reduce(torch.zeros(0, device=device))
    nccl.broadcast(tensor.t(), root=0)
    assert tensor.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert header.tolist() == [3, -4]
    flags = torch.tensor([[True], [False]], device=device)
    (row,) = nccl.all_gather(flags)
    assert torch.equal(row, flags)
    assert nccl.reduce_scatter(tensor).tolist() == tensor.flatten().tolist()
    nccl.close()


def test_nccl_refuses_an_exchange_when_the_group_was_aborted(nccl: NcclGroup) -> None:
    nccl.abort()
    nccl.close()
    with pytest.raises(ExchangeAborted, match="the group was closed"):
        nccl.all_reduce(torch.zeros(1, device=GPU))


def test_nccl_is_refused_when_workers_share_a_gpu(worker_pool: WorkerPool) -> None:
    for message in worker_pool.run(message_of_init, 2, transport="nccl", deadline_s=60):
        assert message.startswith("UsageError: workers 0 and 1 share NVIDIA"), message
        assert "NCCL takes one process per GPU" in message
