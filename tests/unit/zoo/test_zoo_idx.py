# SPDX-License-Identifier: Apache-2.0
"""IDX files: what they hold, and that no damaged file is read as data or crashes the reader."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline import zoo

SHARED = Path(os.environ.get("GANGLINE_DATA", Path(__file__).parents[4] / "shared" / "data"))
PIXELS = bytes(range(2 * 3 * 4))


def idx_bytes(shape: tuple[int, ...], content: bytes, *, element_type: int = 8) -> bytes:
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, element_type, len(shape), *shape)
    return header + content


IMAGES = idx_bytes((2, 3, 4), PIXELS)
LABELS = idx_bytes((2,), bytes([7, 1]))


def write_pair(folder: Path, images: bytes = IMAGES, labels: bytes = LABELS) -> tuple[Path, Path]:
    (folder / "images").write_bytes(images)
    (folder / "labels").write_bytes(labels)
    return folder / "images", folder / "labels"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzipped"])
def test_images_and_labels_are_read(pack: type[bytes], tmp_path: Path) -> None:
    dataset = zoo.idx(*write_pair(tmp_path, pack(IMAGES), pack(LABELS)))
    assert len(dataset) == 2
    assert dataset.classes == tuple("01234567")
    assert torch.equal(dataset.pixels.flatten(), torch.arange(24, dtype=torch.uint8))
    image, label = dataset[1]
    assert image.shape == (1, 3, 4)
    assert float(image[0, 0, 1]) == pytest.approx(13 / 255)
    assert (int(label), label.dtype) == (1, torch.int64)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        pytest.param(IMAGES[:-1], r"truncated.*2 x 3 x 4, that is 24 bytes, and 23", id="cut"),
        pytest.param(IMAGES[:9], "truncated: it ends within its header", id="cut header"),
        pytest.param(IMAGES + b"x", "has bytes after its end", id="too long"),
        pytest.param(b"", "is not an IDX file.*begins with the bytes ''", id="empty"),
        pytest.param(b"\x89PNG....", "is not an IDX file.*'89 50 4e 47'", id="wrong magic"),
        pytest.param(gzip.compress(b"PK\x03\x04"), "is not an IDX file.*'50 4b", id="gzipped zip"),
        pytest.param(gzip.compress(IMAGES)[:-6], "gzip file that is cut short", id="cut gzip"),
        pytest.param(b"\x1f\x8b no gzip", "gzip file that is cut short or damaged", id="not gzip"),
        pytest.param(LABELS, r"1 dimension\(s\), and 3 were expected.*swapped", id="swapped"),
        pytest.param(idx_bytes((2, 3, 4), PIXELS, element_type=13), "type 0x0d", id="floats"),
        pytest.param(idx_bytes((0, 28, 28), b""), "is empty: .* 0 x 28 x 28", id="no images"),
        pytest.param(idx_bytes((2**32 - 1,) * 3, b"x"), "truncated", id="absurd shape"),
        pytest.param(idx_bytes((1, 3, 4), PIXELS[:12]), "1 images but .* 2 labels", id="counts"),
    ],
)
def test_damaged_images_are_refused_with_the_reason(
    images: bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        zoo.idx(*write_pair(tmp_path, images))
    assert str(tmp_path / "images") in str(caught.value)


def test_missing_file_is_named_and_nothing_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*nowhere; nothing is downloaded"):
        zoo.idx(tmp_path / "nowhere", tmp_path / "labels")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), packed=st.booleans())
def test_any_flipped_or_missing_byte_gives_data_or_a_value_error(
    data: st.DataObject, packed: bool, tmp_path: Path
) -> None:
    content = bytearray(gzip.compress(IMAGES) if packed else IMAGES)
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    try:
        dataset = zoo.idx(*write_pair(tmp_path, bytes(content)))
    except ValueError:
        return
    assert dataset.pixels.shape[0] == len(dataset) == 2


def test_mnist_is_read_when_it_is_there() -> None:
    folder = SHARED / "mnist"
    if not folder.is_dir():
        pytest.skip(f"no MNIST in {folder}; set GANGLINE_DATA to the folder that holds mnist/")
    images, labels = (folder / f"t10k-{part}-ubyte.gz" for part in ("images-idx3", "labels-idx1"))
    dataset = zoo.idx(images, labels)
    assert dataset.pixels.shape == (10_000, 1, 28, 28)
    assert torch.bincount(dataset.labels).tolist()[:3] == [980, 1135, 1032]
    assert float(dataset.pixels.float().mean()) == pytest.approx(33.79, abs=0.01)
