# SPDX-License-Identifier: Apache-2.0
"""A script that trains by pipelines, on every worker of a job, and in plain torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

sys.path.append(str(Path(__file__).parent.parent / "multiprocess"))

from bodies_pipeline import alone, train_loop

if TYPE_CHECKING:
    from elastic_bodies import Parts

KIND = "sequential"


def pipelined(parts: Parts) -> dict[str, Any]:
    """`setup.call` has the options, as JSON; `memory` is a list, by worker."""
    if parts.is_alone:
        found = alone(KIND)
        parts.means = found["losses"]
        return found["state"]
    options = msgspec.json.decode(parts.setup.call or "{}")
    found = train_loop(KIND, options, options.pop("memory", None))
    parts.means, parts.found_after = found["losses"], {"stages": found["stages"]}
    return found["state"]
