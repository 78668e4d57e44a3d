# SPDX-License-Identifier: Apache-2.0
"""IDX files, the format of MNIST and its relatives, gzipped or not.

An IDX file is: two zero bytes, a byte for the element type (8 is unsigned byte), a byte for the
number of dimensions, each dimension as a big-endian 32-bit number, and the elements.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from gangline.zoo.images import Images

UNSIGNED_BYTE = 8


def idx(path_images: str | Path, path_labels: str | Path) -> Images:
    """Images (N, rows, columns) and labels (N), as samples of ((1, rows, columns), label)."""
    pixels = read_idx(Path(path_images), num_dimensions=3)
    labels = read_idx(Path(path_labels), num_dimensions=1)
    if len(pixels) != len(labels):
        raise ValueError(
            f"{path_images} holds {len(pixels)} images but {path_labels} holds {len(labels)} "
            "labels; take the two files of the same part (train or test)"
        )
    names = tuple(str(label) for label in range(int(labels.max()) + 1))
    return Images(pixels.unsqueeze(1), labels.long(), classes=names)


def read_idx(path: Path, *, num_dimensions: int) -> Tensor:
    """The bytes of one IDX file, in its shape."""
    content = _read(path)
    shape = _read_shape(content, path=path, num_dimensions=num_dimensions)
    start, num_expected = 4 + 4 * num_dimensions, math.prod(shape)
    if num_expected == 0:
        raise ValueError(f"{path} is empty: its header says {_words(shape)}")
    num_found = len(content) - start
    if num_found != num_expected:
        what = "is truncated" if num_found < num_expected else "has bytes after its end"
        raise ValueError(
            f"{path} {what}: its header says {_words(shape)}, that is {num_expected} bytes, "
            f"and {num_found} follow; get the file again"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}; nothing is downloaded, so put the IDX file there"
        )
    content = path.read_bytes()
    # The name is not asked: browsers unpack `.gz` files silently and keep the name.
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is a gzip file that is cut short or damaged ({error}); get the file again"
        ) from error


def _read_shape(content: bytes, *, path: Path, num_dimensions: int) -> tuple[int, ...]:
    if len(content) < 4 or content[:2] != b"\0\0" or content[3] == 0:
        raise ValueError(
            f"{path} is not an IDX file, gzipped or not: it begins with the bytes "
            f"'{content[:4].hex(' ')}', and '00 00 08 0{num_dimensions}' was expected"
        )
    element_type, found_dimensions = content[2], content[3]
    if element_type != UNSIGNED_BYTE:
        raise ValueError(
            f"{path} holds elements of IDX type 0x{element_type:02x}; only unsigned bytes (0x08) "
            "are read here"
        )
    if found_dimensions != num_dimensions:
        raise ValueError(
            f"{path} has {found_dimensions} dimension(s), and {num_dimensions} were expected; "
            "images have 3 and labels 1: are the two files swapped?"
        )
    if len(content) < 4 + 4 * num_dimensions:
        raise ValueError(f"{path} is truncated: it ends within its header; get the file again")
    return struct.unpack_from(f">{num_dimensions}I", content, 4)


def _words(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)
