# SPDX-License-Identifier: Apache-2.0
"""Where the processes of tests are forked from: one server that has imported what they need.

What such a server imports beforehand is one list for the whole process, and counts only until it is
started: so it is started before any test (`conftest.py`). A worker then costs tenths of a second, not
seconds.
"""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "torch",
        "torch.utils.data",
        "torch._dynamo",
        "gangline.collectives.wire",
        "gangline.eventlog",
        "gangline.runtime.api",
    ]
)
