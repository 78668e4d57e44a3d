# SPDX-License-Identifier: Apache-2.0
"""What of parameter servers is refused before anything is started."""

from __future__ import annotations

import pytest

from gangline.spec.cluster import Cluster
from gangline.spec.config import ExchangeConfig, RunConfig
from gangline.spec.errors import UsageError


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        ("asp(servers=9)", "the job has 3 workers.* give fewer servers, or more workers"),
        ("backup(3)", "leaves nobody to wait for.* give fewer backups, or more workers"),
        ("ssp(-1)", "give a staleness of 0"),
        ("asp(replicas=2)", r"one copy beside it \(1\), or none \(0\)"),
        ("asp(rows=few)", "rows='few' is not known: give changed or ondemand"),
        ("asp(rows=ondemand, update=worker)", "rows=ondemand needs update=server"),
        ("asp(rows=ondemand, ahead=1)", "without ahead and compensation"),
        ("asp(rows=ondemand, compensation=0.1)", "parameters that are whole on the worker"),
        ("bsp(rate=staleness)", "are for asp and ssp.* leave them out"),
        ("bsp(scale=plain)", "in bsp the updates of a round are one step"),
        ("backup(1, compensation=0.1)", r"in backup\(1\) the updates of a round"),
    ],
)
def test_what_three_workers_cannot_do_is_refused_with_what_to_do(sync: str, words: str) -> None:
    cluster = Cluster.of_speeds((1.0, 1.0, 1.0))
    with pytest.raises(UsageError, match=words):
        RunConfig(cluster=cluster, exchange=ExchangeConfig(sync=sync)).check()


def test_torchs_transports_do_not_reach_servers() -> None:
    exchange = ExchangeConfig(sync="asp", transport="gloo")
    with pytest.raises(UsageError, match="need the transport wire or wire-tcp"):
        RunConfig(exchange=exchange).check()
