# SPDX-License-Identifier: Apache-2.0
"""Loops whose workers call things together, or leave each other. They run inside worker processes."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from bodies_runtime import message_of, own_rank, vectors
from torch.utils.data import DataLoader

import gangline

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES, BATCH = 20, 6
STEPS = 4


class Loop:
    """A prepared model, and how it is trained."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(3)
        gangline.init(timeout_s=30)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(vectors(SAMPLES), batch_size=BATCH)
        self.model, self.optimizer, self.loader = gangline.prepare(
            model, optimizer, loader, allocation="equal", **options
        )
        self.rank = gangline.rank()

    def train(self, batch: Any) -> None:
        x, y = batch
        self.optimizer.zero_grad()
        F.mse_loss(self.model(x), y).backward()
        self.optimizer.step()

    def epoch(self) -> None:
        for batch in self.loader:
            self.train(batch)

    def parameters(self) -> list[float]:
        return [float(v) for p in self.model.parameters() for v in p.detach().reshape(-1)]


# --- loops that are left ------------------------------------------------------------------------------


def leave(how: str) -> tuple[str, bool]:
    """A loop that not all workers leave at the same place: the error, and whether this is main."""
    loop = Loop()

    def after_other_epochs() -> None:
        for epoch in range(6):
            loop.epoch()
            if epoch == 1 + 2 * loop.rank:
                break

    def one_inside_an_epoch() -> None:
        for _ in range(2):
            for number, batch in enumerate(loop.loader):
                loop.train(batch)
                if loop.rank == 1 and number == 1:
                    break

    def one_at_the_end_of_an_epoch() -> None:
        for _ in range(2):
            for number, batch in enumerate(loop.loader):
                loop.train(batch)
                if loop.rank == 1 and number == STEPS - 1:
                    break

    def one_returns() -> None:
        for batch in loop.loader:
            loop.train(batch)
            if loop.rank == 0:
                return

    def before_a_call() -> None:
        loop.epoch()
        if loop.rank != 2:
            gangline.mean(1.0)

    def in_a_window() -> None:
        for number, batch in enumerate(loop.loader):
            with gangline.no_sync():
                loop.train(batch)
            if loop.rank == 1 and number == 1:
                return
        loop.epoch()

    return message_of(locals()[how]), gangline.is_main()


def lose_the_last_step() -> str | None:
    """One worker leaves a step before the others, which end with the step that failed."""
    loop = Loop()
    for number, batch in enumerate(loop.loader):
        loop.train(batch)
        if number == 1 + (loop.rank != 0):
            break
    training = gangline.worker.api._job.training
    error = None if loop.rank == 0 else training.find_loss()
    return None if error is None else f"{type(error).__name__}: {error}"


def agree_to_leave(how: str) -> tuple[list[float], int, bool]:
    """All leave at the same batch, because one wants to."""
    loop = Loop()
    steps = 0
    for epoch in gangline.epochs(3) if how == "epochs" else range(3):
        for number, batch in enumerate(loop.loader):
            loop.train(batch)
            steps += 1
            wants = epoch == 1 and number == 2 and loop.rank == 1
            if not gangline.all(not wants) if how == "all" else gangline.any(wants):
                return loop.parameters(), steps, gangline.is_main()
    raise AssertionError("nobody left")


def leave_a_team(how: str) -> str:
    """Groups that train at their own pace, one of which ends early, or calls something else."""
    loop = Loop(sync="none")

    def after_other_epochs() -> None:
        for epoch in range(3):
            loop.epoch()
            if epoch == 0 and loop.rank == 0:
                return

    def inside_an_epoch() -> None:
        for _ in range(2):
            for batch in loop.loader:
                loop.train(batch)
                if loop.rank == 0:
                    return

    def evaluate_on_one() -> None:
        for _ in range(2):
            loop.epoch()
            if gangline.is_main():
                gangline.evaluate(DataLoader(vectors(9), batch_size=3))

    def other_calls() -> None:
        loop.epoch()
        if gangline.is_main():
            gangline.sum(1)
        else:
            gangline.barrier()

    return message_of(locals()[how])


# --- calls --------------------------------------------------------------------------------------------


def differ(how: str) -> str:
    """Workers that do not make the same calls."""
    loop = Loop()
    test = DataLoader(vectors(9), batch_size=3)

    def evaluate_on_one() -> None:
        for _ in range(2):
            loop.epoch()
            if gangline.is_main():
                gangline.evaluate(test)

    def evaluate_on_one_at_the_end() -> None:
        loop.epoch()
        if gangline.is_main():
            gangline.evaluate(test)

    def other_calls() -> None:
        loop.epoch()
        if loop.rank == 1:
            gangline.barrier()
        else:
            gangline.sum(1.0)

    def other_shapes() -> None:
        gangline.sum(torch.ones(20 + loop.rank))

    def call_against_end_of_epoch() -> None:
        for number, batch in enumerate(loop.loader):
            loop.train(batch)
            if number == STEPS - 1 and loop.rank == 0:
                gangline.any(True)

    return message_of(locals()[how])


def call_everything(where: str) -> dict[str, Any]:
    """What the calls bring, before `prepare`, in an epoch and after it."""
    options = {"sync": "none"} if where == "apart" else {}
    if where == "before prepare":
        gangline.init(timeout_s=30)
        rank = gangline.rank()
        return results_of_calls(rank)
    loop = Loop(**options)
    if where == "in an epoch":
        found = [results_of_calls(loop.rank) for _ in loop.loader]
        return found[-1]
    loop.epoch()
    return results_of_calls(gangline.rank())


def results_of_calls(rank: int) -> dict[str, Any]:
    rows = torch.full((rank, 2), float(rank), dtype=torch.bfloat16)
    metric = {"seen": rank, "hits": [torch.tensor(rank == 1)], "name": "accuracy"}
    found = {
        "whole": gangline.sum(rank),
        "float": gangline.sum(0.5 if rank else 1),
        "tensor": gangline.sum(torch.tensor([rank, 1])).tolist(),
        "long": gangline.sum(torch.arange(40.0) * (rank + 1)).tolist(),
        "counted": gangline.sum(torch.tensor([True, rank == 0])).tolist(),
        "any": (gangline.any(rank == 2), gangline.any(False)),
        "all": (gangline.all(rank == 2), gangline.all(torch.tensor(True))),
        "numbers": gangline.gather(rank / 2 if rank else 0),
        "rows": [(r.dtype, r.tolist()) for r in gangline.gather(rows)],
        "metrics": gangline.gather(metric),
    }
    gangline.barrier()
    return found


def count_ghosts() -> tuple[int, int, list[int]]:
    """Samples in the batches of one epoch, with and without ghosts, over all workers."""
    loop = Loop()
    seen = real = 0
    ghosts = []
    for number, (x, y) in enumerate(loop.loader):
        seen += len(x)
        if gangline.is_ghost():
            ghosts.append(number)
        else:
            real += len(x)
        loop.train((x, y))
    return gangline.sum(seen), gangline.sum(real), ghosts


# --- one worker for all -------------------------------------------------------------------------------


def save_together(folder: str) -> list[str]:
    """What is in the folder, as each worker sees it right after saving."""
    loop = Loop()
    loop.epoch()
    path = Path(folder) / "model.pt"
    path.write_bytes(b"an older file")
    gangline.barrier()
    gangline.save(loop.model.state_dict(), path)
    state = torch.load(path)
    assert [float(v) for p in state.values() for v in p.reshape(-1)] == loop.parameters()
    gangline.barrier()
    return sorted(one.name for one in Path(folder).iterdir())


def fail_to_save(folder: str) -> str:
    loop = Loop()
    message = message_of_any(lambda: gangline.save({}, Path(folder) / "missing" / "model.pt"))
    loop.epoch()  # they are still together
    return message


def message_of_any(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def download(folder: str, how: str) -> str:
    """The main worker writes a file, and the others read it."""
    if how == "before prepare":
        gangline.init(timeout_s=30)
    else:
        Loop(**({"sync": "none"} if how == "apart" else {}))
    file = Path(folder) / "data"
    is_main = gangline.is_main()

    def fetch() -> str:
        with gangline.main_first():
            if is_main and how == "failing":
                raise OSError("no route to host")
            with gangline.main_first():  # a library does it, too
                if how == "calling":
                    gangline.barrier()
                if not file.exists():
                    file.write_text(f"by {os.getpid()}")
                gangline.save({}, Path(folder) / "nested.pt")
                return file.read_text()

    found: list[str] = []
    message = message_of_any(lambda: found.append(fetch()))
    assert how in ("failing", "calling") or not is_main or found == [f"by {os.getpid()}"]
    assert how in ("failing", "calling") or (Path(folder) / "nested.pt").exists()
    gangline.barrier()
    return message


def write_by_torch(folder: str, how: str) -> list[str]:
    """Workers that write files by `torch.save`: the warnings that they get."""
    import io

    original = torch.save
    loop = Loop()
    is_wrapped = torch.save is not original
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(2):
            name = f"{how} {loop.rank}.pt" if how == "each its own" else "one.pt"
            if how != "main" or gangline.is_main():
                torch.save(loop.model.state_dict(), f=f"{folder}/{name}")
            torch.save(number, io.BytesIO())
            gangline.save(number, f"{folder}/all.pt")
            gangline.barrier()
        if how == "all one":
            _await_writers(os.path.realpath(f"{folder}/one.pt"))
        gangline.worker.api.shutdown()
    assert is_wrapped
    assert torch.save is original
    return [str(one.message) for one in caught if "torch.save" in str(one.message)]


def _await_writers(path: str) -> None:
    """Waits for the coordinator's word: who wrote first was told at first that nobody else did."""
    client = gangline.worker.api._job.session.client
    deadline = time.monotonic() + 20
    while len(client.writers(path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)


def rank_of_process() -> int:
    return own_rank()
