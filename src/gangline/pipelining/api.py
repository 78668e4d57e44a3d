# SPDX-License-Identifier: Apache-2.0
"""`gangline.pipeline`: trains a model that is cut over the workers of a job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import torch
from torch import Tensor, nn

from gangline.collectives import gather_bytes
from gangline.collectives.transports import WireDoor
from gangline.pipelining.chain import chain_of
from gangline.pipelining.holding import Holdings, check_optimizer, ratio_by_parameter
from gangline.pipelining.measuring import measure
from gangline.pipelining.meeting import Planner
from gangline.pipelining.samples import Samples
from gangline.pipelining.training import Gear, Training
from gangline.planning.pipelines.single import Asked
from gangline.spec.errors import UnsupportedError, UsageError
from gangline.spec.pipelines import SCHEDULES, Layout, Machine, PlannedLayer
from gangline.spec.workload import Workload
from gangline.worker.devices import own_device
from gangline.worker.faults import Faults
from gangline.worker.job import job
from gangline.worker.prepare.serving_need import free_bytes
from gangline.worker.together.blobs import pack_blob, unpack_blob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from gangline.collectives import Group
    from gangline.worker.session import Session

_USED = 0.9
"""The part of the free memory that is reckoned with where nothing is said."""


def pipeline(
    model: nn.Module,
    optimizer: Optimizer,
    loader: DataLoader[Any],
    *,
    loss: Callable[[Tensor, Any], Tensor],
    global_batch: int | None = None,
    schedule: str = "1f1b",
    stages: int | None = None,
    micro_batches: int | None = None,
    recompute: bool | None = None,
    memory: float | None = None,
    copies: bool = True,
    reduction: str = "mean",
    seed: int = 0,
) -> PipelineTraining:
    """Cuts a model over the workers of the job, by their speed and memory, and trains it.

        pipe = gangline.pipeline(model, optimizer, loader, loss=F.cross_entropy, global_batch=64)
        for epoch in range(3):
            for loss in pipe:
                ...

    All workers must call it alike. What it returns is gone through once per epoch, and gives the loss
    of each global batch. From here on the model's layers are the pipeline's: `state_dict()` gathers
    them.

    - `loss`: a function of the model's output and the target of some samples; a mean over them, or
      with `reduction="sum"` a sum.
    - `global_batch`: samples per step (default: the loader's batch size).
    - `schedule`: "1f1b" or "gpipe", which are exact; or "pipedream", which is not: every micro-batch
      makes an update of its own, by the gradient at the parameters of its forward pass.
    - `stages`: of each pipeline; `micro_batches`: of its share; `recompute`: whether activations are
      computed twice rather than kept. By default each is chosen from what was measured.
    - `memory`: the bytes that this worker may use (default: nine tenths of what is free).
    - `copies`: whether layers that one worker has alone are kept by another one, too, so that they
      outlive it.
    - `seed`: of the order of samples, of dropout, and of layers that are made on the meta device.
    """
    session = job.opened()
    _check(session, schedule=schedule, reduction=reduction)
    asked = Asked(
        schedule=schedule, stages=stages, micro_batches=micro_batches, recompute=recompute
    )
    _check_numbers(asked, global_batch, memory)
    check_optimizer(model, optimizer)
    device = own_device(os.environ)
    chain = chain_of(model)
    samples = Samples(loader, global_batch=global_batch, seed=seed)
    measured = measure(
        chain,
        samples.first,
        device=device,
        ratio_of=ratio_by_parameter(optimizer),
        speed=session.place.speed,
        seed=seed,
    )
    options = [asked, samples.batch, samples.length, reduction, seed, copies]
    checksum = crc32(msgspec.msgpack.encode([options, _values_of(model)]))
    gear = Gear(
        session=session,
        chain=chain,
        holdings=Holdings(model, optimizer, chain, device=device, seed=seed),
        measured=measured,
        machine=Machine(
            name=f"w{session.place.worker}",
            forward=tuple(measured.forward),
            backward=tuple(measured.backward),
            memory_bytes=_memory(device) if memory is None else memory,
        ),
        samples=samples,
        planner=Planner(
            measured.layers,
            samples.batch,
            asked,
            keep_copies=copies,
            everybody=session.place.config.manager.everybody,
        ),
        loss=loss,
        is_mean=reduction == "mean",
        schedule=schedule,
        seed=seed,
        checksum=checksum,
        device=device,
        faults=Faults(session.place.faults, record=session.record, line=session.client),
    )
    return PipelineTraining(Training(gear), gear)


class PipelineTraining:
    """A training by pipelines: go through it once per epoch."""

    def __init__(self, training: Training, gear: Gear) -> None:
        self._training, self._gear = training, gear

    def __iter__(self) -> Iterator[float]:
        """The steps of the next epoch, or of the one that was left: the loss of each."""
        training = self._training
        last = (training.epoch + 1) * self._gear.samples.steps_per_epoch
        while training.position < last:
            yield training.step()

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self._gear.samples.steps_per_epoch

    @property
    def layout(self) -> Layout:
        """Who computes what. All workers must have come here, or to a step, for the first time."""
        if self._training.layout is None:
            self._training.together(lambda: None)
        assert self._training.layout is not None
        return self._training.layout

    def state_dict(self, *, everywhere: bool = False) -> dict[str, Tensor]:
        """The whole model, in main memory: on the main worker, or everywhere. All must call it."""
        return self._training.together(lambda: self._gather(everywhere=everywhere))  # type: ignore[no-any-return]

    def workload(self) -> Workload:
        """What was measured here of the model, for `gangline plan`: its layers, with their sizes."""
        measured, batch = self._gear.measured, self._gear.samples.batch
        seconds = [
            forward.sample_s + backward.sample_s
            for forward, backward in zip(measured.forward, measured.backward, strict=True)
        ]
        layers = [
            PlannedLayer(**msgspec.structs.asdict(layer), part=one / sum(seconds))
            for layer, one in zip(measured.layers, seconds, strict=True)
        ]
        return Workload(
            global_batch=batch,
            gradient_bytes=sum(layer.parameter_bytes for layer in layers),
            model_bytes=sum(layer.state_bytes for layer in layers),
            sample_bytes=sum(layer.saved_bytes for layer in layers),
            layers=tuple(layers),
        )

    def close(self) -> None:
        """Ends the connections between the workers. The script's end does it, too."""
        self._training.close()
        self._gear.faults.close()

    def _gather(self, *, everywhere: bool) -> dict[str, Tensor]:
        layout = self.layout
        session, found = self._gear.session, {}
        own = self._gear.machine.name
        for pipe in layout.pipelines[:1]:
            for stage in pipe.stages:
                for index in range(stage.start, stage.stop):
                    blob = self._export(index) if stage.machine == own else b""

                    def exchange(group: Group, blob: bytes = blob) -> list[bytes]:
                        return gather_bytes(group, blob)

                    (told,) = [one for one in session.communicator.call(exchange) if one]
                    if everywhere or session.group.rank == 0:
                        found.update(unpack_blob(told, torch.device("cpu")))
        return found

    def _export(self, index: int) -> bytes:
        state = self._gear.holdings.export(index)
        return pack_blob({**state["parameters"], **state["buffers"]})


def _check(session: Session, *, schedule: str, reduction: str) -> None:
    if job.training is not None:
        raise UsageError(
            "pipeline() was called after prepare(), which has each worker train the whole model: call "
            "one of the two"
        )
    if session.is_late:
        raise UsageError(
            "this worker came to a running job: a pipeline is made of the workers that a job begins "
            "with"
        )
    if session.door is not None and not isinstance(session.door, WireDoor):
        raise UnsupportedError("pipeline() needs the transport wire or wire-tcp")
    if schedule not in SCHEDULES:
        raise UsageError(f"no schedule {schedule!r}; there are {', '.join(SCHEDULES)}")
    if reduction not in ("mean", "sum"):
        raise UsageError(f"reduction is 'mean' or 'sum', not {reduction!r}")


def _check_numbers(asked: Asked, global_batch: int | None, memory: float | None) -> None:
    for name, value in (
        ("global_batch", global_batch),
        ("stages", asked.stages),
        ("micro_batches", asked.micro_batches),
        ("memory", memory),
    ):
        if value is not None and not value >= 1:
            raise UsageError(f"pipeline(): {name} is at least 1, not {value}")


def _memory(device: torch.device) -> float:
    if device.type == "cuda":
        return _USED * torch.cuda.mem_get_info(device)[0]
    return _USED * free_bytes()


def _values_of(model: nn.Module) -> dict[str, tuple[list[int], float]]:
    """By which models are compared: names, shapes, and the sums of their values."""
    return {
        name: (list(value.shape), 0.0 if value.is_meta else round(float(value.double().sum()), 3))
        for name, value in model.state_dict().items()
    }
