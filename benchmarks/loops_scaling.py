# SPDX-License-Identifier: Apache-2.0
"""`gangline.map` beside joblib, multiprocessing.Pool, futures, Dask and Ray on 1 to 16 cores.

    python benchmarks/loops_scaling.py --workers 1 2 4 8 16 --repeats 3
    python benchmarks/loops_scaling.py --workers 1 2 --work plain --rows 200

The same rows, sorted by what they cost, go to everybody. `native` is numpy, `plain` is Python, for
which threads are no help. Who is not told how to cut gets eight blocks for each worker. `new` counts
the start of the processes; `kept` uses a pool that was started before. In each repeat all contenders
run once, in an order of its own. Results are compared with those of one thread. Who is not installed
is left out, and told.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np

import gangline
import loops_work
from journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable

    Contender = Callable[[], np.ndarray]

ROWS = {"native": (330, 4_000, 60_000), "plain": (550, 2_000, 30_000)}
"""How many rows, and between what they vary."""
BLOCKS = 8


class Bench:
    """One kind of work with one number of workers."""

    def __init__(self, work: str, workers: int, data: np.ndarray, stack: contextlib.ExitStack):
        self._work: Callable[[np.ndarray], np.ndarray] = getattr(loops_work, work)
        self._workers = workers
        self._data = data
        self._blocks = np.array_split(data, BLOCKS * workers)
        self._stack = stack
        self.missing: dict[str, str] = {}

    def contenders(self, *, has_threads: bool) -> dict[str, Contender]:
        """Everybody who is installed, by name."""
        found = {
            "gangline processes (new)": lambda: self._gangline("processes"),
            "gangline processes (fork)": lambda: self._gangline("processes", is_forked=True),
            "multiprocessing.Pool (new)": self._new_pool,
            "multiprocessing.Pool (kept)": self._kept_pool(),
        }
        if has_threads:
            found["gangline threads"] = lambda: self._gangline("threads")
            found["concurrent.futures threads"] = self._futures
        for add in (self._joblib, self._dask, self._ray):
            try:
                found |= add(has_threads=has_threads)
            except ImportError as error:
                self.missing[add.__name__.strip("_")] = str(error)
        return found

    def _gangline(self, where: str, *, is_forked: bool = False) -> np.ndarray:
        work = self._work
        function = (lambda rows: work(rows)) if is_forked else work
        made: np.ndarray = gangline.map(function, self._data, workers=self._workers, where=where)
        return made

    def _new_pool(self) -> np.ndarray:
        with get_context("fork").Pool(self._workers) as pool:
            return np.concatenate(pool.map(self._work, self._blocks, chunksize=1))

    def _kept_pool(self) -> Contender:
        pool = self._stack.enter_context(get_context("fork").Pool(self._workers))
        return lambda: np.concatenate(pool.map(self._work, self._blocks, chunksize=1))

    def _futures(self) -> np.ndarray:
        with ThreadPoolExecutor(self._workers) as pool:
            return np.concatenate(list(pool.map(self._work, self._blocks)))

    def _joblib(self, *, has_threads: bool) -> dict[str, Contender]:
        from joblib import Parallel, delayed

        def run(backend: str) -> np.ndarray:
            jobs = (delayed(self._work)(one) for one in self._blocks)
            return np.concatenate(Parallel(n_jobs=self._workers, backend=backend)(jobs))

        found: dict[str, Contender] = {"joblib loky (kept)": lambda: run("loky")}
        if has_threads:
            found["joblib threading"] = lambda: run("threading")
        return found

    def _dask(self, *, has_threads: bool) -> dict[str, Contender]:
        import dask
        from distributed import Client, LocalCluster

        jobs = [dask.delayed(self._work)(one) for one in self._blocks]
        cluster = self._stack.enter_context(
            LocalCluster(
                n_workers=self._workers,
                threads_per_worker=1,
                dashboard_address=None,
                silence_logs=50,
            )
        )
        client = self._stack.enter_context(Client(cluster, set_as_default=False))

        def distributed() -> np.ndarray:
            futures = client.map(self._work, self._blocks, pure=False)
            return np.concatenate(client.gather(futures))

        def threads() -> np.ndarray:
            some = dask.compute(*jobs, scheduler="threads", num_workers=self._workers)
            return np.concatenate(some)

        found: dict[str, Contender] = {"Dask distributed (kept)": distributed}
        if has_threads:
            found["Dask threads"] = threads
        return found

    def _ray(self, *, has_threads: bool) -> dict[str, Contender]:
        import ray

        ray.init(
            num_cpus=self._workers,
            include_dashboard=False,
            object_store_memory=200_000_000,
            logging_level="error",
            _temp_dir=os.environ.get("GANGLINE_RAY_FOLDER", "/tmp/loops-ray"),
        )
        self._stack.callback(ray.shutdown)
        remote = ray.remote(self._work)
        return {
            "Ray (kept)": lambda: np.concatenate(ray.get([remote.remote(b) for b in self._blocks]))
        }


def compare(work: str, workers: int, data: np.ndarray, right: np.ndarray, given: Any) -> None:
    """All contenders with one number of workers."""
    with contextlib.ExitStack() as stack:
        bench = Bench(work, workers, data, stack)
        contenders = bench.contenders(has_threads=work == "native")
        for name, why in bench.missing.items():
            given.journal.add(work=work, workers=workers, missing=name, why=why)
        for contender in contenders.values():
            contender()  # not counted: it imports, and starts what is kept
        for repeat in range(given.repeats):
            for name in random.Random(repeat).sample(sorted(contenders), len(contenders)):
                begun = time.perf_counter()
                made = contenders[name]()
                took = time.perf_counter() - begun
                assert np.allclose(made, right), name
                row = {"work": work, "workers": workers, "who": name, "repeat": repeat}
                given.journal.add(**row, seconds=took)
    print(f"{work}, {workers} workers: done", flush=True)


def main() -> None:
    """Measures, and writes each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--work", choices=list(ROWS), action="append", help="default: both")
    parser.add_argument("--rows", type=int, help="instead of the usual number")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--name", default="loops_scaling", help="of the file of results")
    given = parser.parse_args()
    given.journal = Journal(given.name)
    for work in given.work or list(ROWS):
        rows, low, high = ROWS[work]
        drawn = np.random.default_rng(0).integers(low, high, given.rows or rows)
        data = np.sort(drawn).astype(float)
        begun = time.perf_counter()
        right = getattr(loops_work, work)(data)
        given.journal.add(work=work, one_thread_s=time.perf_counter() - begun, rows=len(data))
        for workers in sorted(given.workers, reverse=True):
            compare(work, workers, data, right, given)


if __name__ == "__main__":
    main()
