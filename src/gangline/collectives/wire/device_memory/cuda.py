# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU that other processes can map: CUDA's own handles, by way of its driver.

The driver is asked directly, because torch's handles belong to torch's allocator: it counts who uses
them in files, and a process that is killed leaves the counts as they are.

A window is kept until its process ends, and used again by the next group: to free memory that
another process still maps is undefined.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch

from gangline.collectives.wire.device_memory.memory import Offer, Refused, Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_HANDLE_BYTES = 64
_WITH_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * _HANDLE_BYTES),)


class _Span:
    """A piece of device memory, as torch takes it over without a copy."""

    def __init__(self, pointer: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


class CudaMemory:
    """Windows in the memory of the GPU that this member's tensors are on."""

    def __init__(self) -> None:
        self._device: torch.device | None = None
        self._stream: torch.cuda.Stream | None = None
        self._own: Window | None = None
        self._opened: list[int] = []

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor is on a GPU; the first one that is chooses the GPU."""
        if tensor.is_cuda and self._device is None:
            self._device = tensor.device
        return tensor.is_cuda

    def offer(self, num_bytes: int) -> tuple[Window, Offer]:
        """A window of this member's own, and what the others need to open it."""
        device = self._chosen()
        self._own = _WINDOWS.take(device, num_bytes)
        handle = _Handle()
        with torch.cuda.device(device):
            _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self._own.pointer))
        return self._own, Offer(where=_name_of(device), handle=bytes(handle))

    def open(self, offer: Offer, num_bytes: int) -> Window:
        """Another member's window."""
        device = self._chosen()
        if offer.where != _name_of(device):
            raise Refused(
                f"the members are on different GPUs: {_name_of(device)} and {offer.where}"
            )
        if len(offer.handle) != _HANDLE_BYTES:
            raise Refused(f"a handle has {_HANDLE_BYTES} bytes, not {len(offer.handle)}")
        pointer = ctypes.c_uint64()
        with torch.cuda.device(device):
            handle = _Handle.from_buffer_copy(offer.handle)
            _call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, _WITH_PEER_ACCESS)
        self._opened.append(pointer.value)
        return _window(pointer.value, num_bytes, device)

    @contextmanager
    def working(self) -> Iterator[None]:
        """What is asked of the GPU inside comes between what the caller has asked and will ask."""
        caller = torch.cuda.current_stream(self._chosen())
        if self._stream is None:  # others wait for what is queued here: it goes first
            self._stream = torch.cuda.Stream(self._chosen(), priority=-1)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            yield
        caller.wait_stream(self._stream)

    def wait(self) -> None:
        """Returns when the GPU has done what was asked of it here: never a peer's work."""
        assert self._stream is not None, "nothing was asked of it within `working`"
        self._stream.synchronize()

    def close(self) -> None:
        """Lets go of the others' windows; this member's own serves the next group."""
        if self._device is None:
            return
        with torch.cuda.device(self._device):
            torch.cuda.synchronize(self._device)  # somebody else's thread may close
            while self._opened:
                _call("cuIpcCloseMemHandle", ctypes.c_uint64(self._opened.pop()))
        if self._own is not None:
            _WINDOWS.give_back(self._device, self._own)
            self._own = None

    def _chosen(self) -> torch.device:
        assert self._device is not None, "a tensor was held before"
        return self._device


class _Windows:
    """The windows of this process, those in use apart."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.device, int], list[Window]] = {}
        self._lock = threading.Lock()

    def take(self, device: torch.device, num_bytes: int) -> Window:
        with self._lock:
            free = self._free.get((device, num_bytes))
            if free:
                return free.pop()
        pointer = ctypes.c_uint64()
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).synchronize()  # makes the device this thread's
            _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(num_bytes))
        return _window(pointer.value, num_bytes, device)

    def give_back(self, device: torch.device, window: Window) -> None:
        with self._lock:
            self._free.setdefault((device, window.memory.numel()), []).append(window)


_WINDOWS = _Windows()


def _window(pointer: int, num_bytes: int, device: torch.device) -> Window:
    return Window(torch.as_tensor(_Span(pointer, num_bytes), device=device), pointer)


def _name_of(device: torch.device) -> str:
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} {properties.uuid}"


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Refused(f"the CUDA driver cannot be loaded: {error}") from error


def _call(function: str, *arguments: object) -> None:
    driver = _driver()
    code = getattr(driver, function)(*arguments)
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        said = text.value.decode(errors="replace") if text.value else "no description"
        raise Refused(f"{function} failed with code {code} ({said})")
