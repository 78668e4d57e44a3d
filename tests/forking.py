# SPDX-License-Identifier: Apache-2.0
"""Where the processes of tests are forked from: one server that has imported what they need.

What such a server imports beforehand is one list for the whole process, and counts only until it is
started: so it is started before any test (`conftest.py`). A worker then costs tenths of a second, not
seconds. A process also imports all that the module of its function does: what is not in this list, each
of them imports anew, which takes longer than a short job does.
"""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "torch",
        "torch.utils.data",
        "torch._dynamo",
        "pytest",
        "gangline.launch.joining.contact",
        "gangline.collectives.wire",
        "gangline.engines.job",
        "gangline.eventlog",
        "gangline.observe.ledger",
        "gangline.worker.api",
        "gangline.testing.coordination",
    ]
)
