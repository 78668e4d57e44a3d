# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a coordinator, so that its run can be put through `handle` once more.

A recording is some files, of which the oldest may be gone. Each begins with a snapshot of the
coordinator, so that a replay can start with any of them. Then come its inputs, each with its time and
a checksum of what `handle` returned.

A snapshot is a pickle of our own objects. It is read by an unpickler that knows our own classes and
plain containers and nothing else, because run folders are sent around.
"""

from __future__ import annotations

import collections
import copyreg
import io
import pickle
import zlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gangline.coordinator.inputs import Input
from gangline.spec.errors import LogError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.coordinator.coordinator import Coordinator
    from gangline.coordinator.outputs import Output

FORMAT = 1
_LENGTH_BYTES = 4
_OWN = "gangline."
_CONTAINERS = {
    ("collections", "deque"): collections.deque,
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "Counter"): collections.Counter,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "list"): list,
    ("builtins", "dict"): dict,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
_MAKERS = {
    ("msgspec._utils", "rebuild"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
}
"""Functions that make an object of a class, which is looked up here too."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The first thing in a file."""

    format: int
    version: str
    """The gangline that wrote it: another one may decide otherwise."""
    run: str
    snapshot: bytes


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One input, and what came of it."""

    t: float
    given: Input
    digest: int


_encoder = msgspec.msgpack.Encoder()
_openings = msgspec.msgpack.Decoder(Opening)
_entries = msgspec.msgpack.Decoder(Entry)


def digest(outputs: Sequence[Output]) -> int:
    """A checksum of what `handle` returned."""
    return zlib.crc32(_encoder.encode(outputs))


def check_recordable(given: Input) -> None:
    """Raises UsageError for an input that no recording can hold."""
    try:
        _encoder.encode(given)
    except OverflowError as error:
        raise UsageError("a number in this order is larger than any job has") from error


def framed(item: Opening | Entry) -> bytes:
    """An item as it stands in a file, behind its length."""
    payload = _encoder.encode(item)
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


def opening_of(coordinator: Coordinator, *, run: str, version: str) -> Opening:
    """What a file begins with that is opened now."""
    snapshot = io.BytesIO()
    _OwnPickler(snapshot).dump(coordinator)
    return Opening(format=FORMAT, version=version, run=run, snapshot=snapshot.getvalue())


def read_recording(data: bytes, *, path: str) -> tuple[Opening, list[Entry]]:
    """A file's items; one at its end that was cut off counts nothing. Raises LogError."""
    payloads = _payloads(data)
    try:
        opening = _openings.decode(next(payloads, b""))
        entries = [_entries.decode(payload) for payload in payloads]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(f"{path} is no recording of a coordinator: {error}") from error
    if opening.format != FORMAT:
        raise LogError(
            f"{path} is a recording of format {opening.format}, and this gangline reads {FORMAT}"
        )
    return opening, entries


def count_torn(data: bytes) -> int:
    """How many bytes at the end of a file are a part of an item that is not whole."""
    return len(data) - sum(_LENGTH_BYTES + len(payload) for payload in _payloads(data))


def restored(opening: Opening, *, path: str) -> Coordinator:
    """The coordinator as it was when the file was opened. Raises LogError."""
    try:
        coordinator: Coordinator = _OwnUnpickler(io.BytesIO(opening.snapshot)).load()
    except Exception as error:  # a damaged pickle may raise anything
        raise LogError(
            f"the state in {path} cannot be read: {error}. It was written by gangline "
            f"{opening.version}; replay it with that one"
        ) from error
    return coordinator


class _ReadOnly:
    """Makes a read-only dict, whose own class has no name by which it could be found."""

    def __new__(cls, content: dict[Any, Any]) -> Any:
        return MappingProxyType(content)


class _OwnPickler(pickle.Pickler):
    """Knows read-only dicts, too."""

    dispatch_table = copyreg.dispatch_table | {
        MappingProxyType: lambda proxy: (_ReadOnly, (dict(proxy),))
    }


class _OwnUnpickler(pickle.Unpickler):
    """Makes objects of our own classes, arrays and containers; refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        known = _CONTAINERS.get((module, name))
        if known is not None:
            return known
        if (module, name) in _MAKERS:
            return super().find_class(module, name)
        found = super().find_class(module, name) if module.startswith(_OWN) else None
        if isinstance(found, type):
            return found
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of a coordinator")


def _payloads(data: bytes) -> Iterator[bytes]:
    start = 0
    while start + _LENGTH_BYTES <= len(data):
        stop = start + _LENGTH_BYTES + int.from_bytes(data[start : start + _LENGTH_BYTES], "big")
        if stop > len(data):
            return
        yield data[start + _LENGTH_BYTES : stop]
        start = stop
