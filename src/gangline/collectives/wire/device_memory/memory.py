# SPDX-License-Identifier: Apache-2.0
"""What the way over device memory needs of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor


class Refused(Exception):
    """The device's memory cannot be shared: the message says why."""


class Window(NamedTuple):
    """Memory that all members can read, and its owner writes."""

    memory: Tensor
    """Its bytes."""
    pointer: int


class Offer(msgspec.Struct, frozen=True):
    """What a member tells the others, so that they can open its window."""

    where: str = ""
    """The device, by a name that is the same in all processes of the host."""
    handle: bytes = b""
    refusal: str = ""
    """Why there is no window."""


class DeviceMemory(Protocol):
    """The memory of the device that a member's tensors are on."""

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor is on the device."""
        ...

    def offer(self, num_bytes: int) -> tuple[Window, Offer]:
        """A window of this member's own, and what the others need to open it; or `Refused`."""
        ...

    def open(self, offer: Offer, num_bytes: int) -> Window:
        """Another member's window; or `Refused`."""
        ...

    def working(self) -> AbstractContextManager[None]:
        """What is asked of the device inside comes between what the caller has asked and will ask."""
        ...

    def wait(self) -> None:
        """Returns when the device has done what was asked of it so far within `working`."""
        ...

    def close(self) -> None:
        """Lets go of all windows."""
        ...
