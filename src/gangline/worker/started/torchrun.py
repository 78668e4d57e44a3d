# SPDX-License-Identifier: Apache-2.0
"""`torchrun`: the first worker serves the coordinator, and tells the others by torch's store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from gangline.spec.errors import UsageError
from gangline.worker.place import Place
from gangline.worker.started.serving import serve_here

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_STORE_KEY = "coordinator"


@dataclass(frozen=True, kw_only=True)
class TorchRun:
    """This process's place in a job that `torchrun` started."""

    run: str
    worker: int
    workers: int
    host: str
    port: int
    agent_serves_store: bool
    attempt: str

    def place(self, *, timeout_s: float) -> Place:
        """Meets the others in torch's store."""
        if self.workers == 1:
            return Place(launcher="torchrun", run=self.run)
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        store = PrefixStore(
            f"gangline/{self.attempt}",
            TCPStore(
                self.host,
                self.port,
                is_master=self.worker == 0 and not self.agent_serves_store,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
            ),
        )
        server = None
        if self.worker == 0:
            host = "127.0.0.1" if self.host == "localhost" else self.host
            server, url, token = serve_here(run=self.run, workers=self.workers, host=host)
            store.set(_STORE_KEY, f"{url} {token}")
        url, token = store.get(_STORE_KEY).decode().split()
        return Place(
            launcher="torchrun",
            run=self.run,
            worker=self.worker,
            workers=self.workers,
            find_coordinator=lambda: url,
            token=token,
            own_coordinator=server,
            store=store if self.worker == 0 else None,
        )


def recognise(environment: Mapping[str, str]) -> TorchRun | None:
    """What torchrun's variables say; several other tools set the same ones."""
    if not all(name in environment for name in _VARIABLES):
        return None
    try:
        worker, workers = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        port = int(environment["MASTER_PORT"])
    except ValueError as error:
        raise UsageError(
            f"RANK, WORLD_SIZE and MASTER_PORT must be whole numbers ({error}); start the script "
            "with `torchrun --nproc-per-node N script.py` or `gangline run script.py`"
        ) from error
    if not 0 <= worker < workers:
        raise UsageError(
            f"RANK is {worker} and WORLD_SIZE is {workers}: a rank is from 0 to WORLD_SIZE - 1; "
            "start the script with `torchrun --nproc-per-node N script.py` or `gangline run script.py`"
        )
    return TorchRun(
        run=environment.get("TORCHELASTIC_RUN_ID", "torchrun"),
        worker=worker,
        workers=workers,
        host=environment["MASTER_ADDR"],
        port=port,
        agent_serves_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )
