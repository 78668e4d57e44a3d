# SPDX-License-Identifier: Apache-2.0
"""Public helpers for tests that need several real worker processes.

    def body(seed):                    # a top-level function of an importable module
        gangline.init()
        ...
        return {"rank": gangline.rank()}

    values = run_workers(body, 3, args=(7,))        # one value per worker, in rank order

A `WorkerPool` does the same with processes that are used again, for hundreds of small cases.
"""

from gangline.testing.pool import WorkerError as WorkerError
from gangline.testing.pool import WorkerPool as WorkerPool
from gangline.testing.workers import run_workers as run_workers
