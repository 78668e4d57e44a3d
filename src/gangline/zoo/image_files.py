# SPDX-License-Identifier: Apache-2.0
"""Photos in one folder per class, as a directory or as a tar file of one.

Everything is decoded and scaled once and kept as bytes: 224x224 takes 150 KB per photo. A tar file
is read in place; nothing is unpacked to disk.
"""

from __future__ import annotations

import tarfile
from importlib import import_module
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gangline.zoo.images import Images

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


def image_folder(path: str | Path, size: int = 224) -> Images:
    """The photos under `path` as samples of (3, size, size); a folder's name is its class.

    Classes are numbered in the order of their names. Files that are no images by their suffix are
    passed over; one that cannot be decoded is an error.
    """
    path = Path(path)
    if size < 1:
        raise ValueError(f"size is the side of the images in pixels, at least 1, not {size}")
    decode = _decoder(size)
    found = [(name.parts[-2], decode(content, f"{path}/{name}")) for name, content in _files(path)]
    if not found:
        raise ValueError(
            f"{path} holds no images in folders, one folder per class "
            f"(like cats/1.jpg, dogs/2.png; suffixes {', '.join(sorted(SUFFIXES))})"
        )
    classes = tuple(sorted({name for name, _ in found}))
    labels = torch.tensor([classes.index(name) for name, _ in found])
    return Images(torch.stack([pixels for _, pixels in found]), labels, classes=classes)


def _files(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    if path.is_dir():
        return _files_of_folder(path)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no folder or tar file {path}; nothing is downloaded, so put it there"
        )
    if not tarfile.is_tarfile(path):
        raise ValueError(f"{path} is neither a folder nor a tar file")
    return _files_of_tar(path)


def _files_of_folder(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    for file in sorted(path.rglob("*")):
        name = PurePosixPath(file.relative_to(path))
        if _is_image(name) and file.is_file():
            yield name, file.read_bytes()


def _files_of_tar(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                name = PurePosixPath(member.name)
                file = archive.extractfile(member) if _is_image(name) else None
                if file is not None:
                    yield name, file.read()
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"the tar file {path} is damaged ({error}); get it again") from error


def _is_image(name: PurePosixPath) -> bool:
    # The dot files are what macOS puts beside each photo of a tar file, with the same suffix.
    has_class = len(name.parts) >= 2
    return has_class and name.suffix.lower() in SUFFIXES and not name.name.startswith(".")


def _decoder(size: int) -> Callable[[bytes, str], Tensor]:
    try:
        pillow = import_module("PIL.Image")
    except ImportError as error:
        raise ImportError(
            f"photos are decoded by Pillow, which cannot be imported here ({error}); "
            "install it with `pip install pillow`"
        ) from error

    def decode(content: bytes, name: str) -> Tensor:
        try:
            with pillow.open(BytesIO(content)) as photo:
                pixels = np.array(photo.convert("RGB").resize((size, size)))
        except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
            raise ValueError(
                f"{name} cannot be decoded ({error}); replace the file, or take it out"
            ) from error
        return torch.from_numpy(pixels).permute(2, 0, 1)

    return decode
