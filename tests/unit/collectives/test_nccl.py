# SPDX-License-Identifier: Apache-2.0
"""Who may not use NCCL, and what they are told. (What NCCL does is shown in tests/gpu.)"""

from __future__ import annotations

import threading

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gangline.collectives import GroupKey
from gangline.collectives.nccl import NcclGroup, check_available, check_devices
from gangline.collectives.transports import NcclDoor
from gangline.spec.errors import UsageError

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@needs_no_gpu
def test_the_door_stays_shut_when_there_is_no_gpu() -> None:
    with pytest.raises(UsageError, match=r"needs a CUDA device.*use transport 'wire'"):
        NcclDoor("127.0.0.1", timeout_s=5)


@needs_no_gpu
def test_no_group_is_made_when_there_is_no_gpu() -> None:
    with pytest.raises(UsageError, match="needs a CUDA device in every worker"):
        NcclGroup(GroupKey("run", 0, 0), store=HashStore(), rank=0, size=1, timeout_s=5)


def test_a_torch_without_nccl_is_named_when_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(UsageError, match=r"was built without NCCL; use transport 'wire'"):
        check_available()


def messages_of(devices: list[str]) -> list[str]:
    """What each member is told, where the members have these devices."""
    store, told = HashStore(), [""] * len(devices)

    def member(rank: int) -> None:
        try:
            check_devices(store, rank=rank, size=len(devices), device=devices[rank])
        except UsageError as error:
            told[rank] = str(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_all_members_are_told_when_two_share_a_gpu() -> None:
    told = messages_of(["GPU a", "GPU b", "GPU a"])
    assert len(set(told)) == 1
    assert "workers 0 and 2 share GPU a" in told[0]
    assert "torch.cuda.set_device() before gangline.init()" in told[0]


def test_nobody_is_refused_when_each_member_has_a_gpu_of_its_own() -> None:
    assert messages_of(["GPU a", "GPU b", "GPU c"]) == ["", "", ""]
