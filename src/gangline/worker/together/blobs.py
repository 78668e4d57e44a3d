# SPDX-License-Identifier: Apache-2.0
"""Values of any length and nesting as bytes, to be gathered from all workers. Nothing is pickled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from gangline.worker.groups.state import empty_tensors, pack_state, tensor_specs, unpack_state

if TYPE_CHECKING:
    from collections.abc import Sequence

_Document = tuple[bytes, list[tuple[str, list[int]]], list[bytes]]
_TeamBlobs = tuple[int, list[bytes]]


def pack_blob(value: Any) -> bytes:
    """A value as bytes. Raises UnsupportedError, with the place, where it cannot be sent."""
    document, tensors = pack_state(value)
    contents = [
        tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for tensor in tensors
    ]
    return msgspec.msgpack.encode((document, tensor_specs(tensors), contents))


def unpack_blob(blob: bytes, device: torch.device) -> Any:
    """The value again, with its tensors on this device."""
    document, specs, contents = msgspec.msgpack.decode(blob, type=_Document)
    tensors = empty_tensors(specs)
    for tensor, content in zip(tensors, contents, strict=True):
        if content:
            flat = torch.frombuffer(bytearray(content), dtype=tensor.dtype)
            tensor.copy_(flat.view_as(tensor))
    return unpack_state(document, [tensor.to(device) for tensor in tensors])


def pack_blobs(first_rank: int, blobs: Sequence[bytes]) -> bytes:
    """What a team brings: its members' blobs, and the rank of the first."""
    return msgspec.msgpack.encode((first_rank, list(blobs)))


def unpack_blobs(payloads: Sequence[bytes]) -> list[bytes]:
    """All teams' blobs, in rank order."""
    teams = [msgspec.msgpack.decode(payload, type=_TeamBlobs) for payload in payloads]
    return [blob for _, blobs in sorted(teams) for blob in blobs]
