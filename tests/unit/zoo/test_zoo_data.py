# SPDX-License-Identifier: Apache-2.0
"""The data sets of the zoo that are not IDX files: digits, synthetic samples, folders of photos."""

from __future__ import annotations

import io
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest
import torch

from gangline import zoo
from gangline.zoo import image_files

if TYPE_CHECKING:
    from pathlib import Path

    from torch.utils.data import TensorDataset


def tensors(dataset: TensorDataset) -> tuple[torch.Tensor, torch.Tensor]:
    samples, labels = dataset.tensors
    return samples, labels


def test_digits_are_split_without_overlap_or_loss() -> None:
    pytest.importorskip("sklearn")
    train, test, everything = (tensors(zoo.digits(part)) for part in ("train", "test", "all"))
    assert (len(train[1]), len(test[1]), len(everything[1])) == (1438, 359, 1797)
    together = torch.cat([test[0], train[0]])
    assert torch.equal(together, everything[0])
    assert train[0].shape[1:] == (1, 8, 8)
    assert train[1].dtype == torch.int64
    assert float(everything[0].min()) == 0
    assert float(everything[0].max()) == 1


def test_digits_are_the_same_when_the_seed_is_and_differ_when_it_is_not() -> None:
    pytest.importorskip("sklearn")
    first, again, other = (tensors(zoo.digits("test", seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("size", [28, 32])
def test_digits_are_resized_when_asked(size: int) -> None:
    pytest.importorskip("sklearn")
    images, _ = tensors(zoo.digits("test", size=size))
    assert images.shape[1:] == (1, size, size)
    assert images.dtype == torch.float32


def test_unknown_split_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="split must be 'train', 'test' or 'all', not 'valid'"):
        zoo.digits("valid")  # type: ignore[arg-type]


def test_digits_say_what_to_install_when_scikit_learn_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install gangline\[demo\]"):
        zoo.digits()


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8), (2, 3, 4, 5)])
def test_synthetic_data_has_the_asked_shape_and_classes(shape: tuple[int, ...]) -> None:
    samples, labels = tensors(zoo.synthetic(shape, num_classes=3, num_samples=50, seed=1))
    assert samples.shape == (50, *shape)
    assert set(labels.tolist()) == {0, 1, 2}


def test_synthetic_data_repeats_by_seed_and_can_be_learned() -> None:
    samples, labels = tensors(zoo.synthetic((64,), num_classes=2, num_samples=200, seed=7))
    again, _ = tensors(zoo.synthetic((64,), num_classes=2, num_samples=200, seed=7))
    assert torch.equal(samples, again)
    means = torch.stack([samples[labels == label].mean(0) for label in (0, 1)])
    guesses = torch.cdist(samples, means).argmin(1)
    assert float((guesses == labels).float().mean()) > 0.95


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"shape": (3,), "num_classes": 0}, "num_classes"),
        ({"shape": (3,), "num_samples": -1}, "num_samples"),
        ({"shape": (3, 0)}, "shape"),
    ],
)
def test_synthetic_data_of_no_size_is_refused_by_name(
    arguments: dict[str, object], named: str
) -> None:
    with pytest.raises(ValueError, match=f"{named} of a synthetic data set must be positive"):
        zoo.synthetic(**arguments)  # type: ignore[arg-type]


def fake_decoder(size: int) -> object:
    """Stands for Pillow: a photo's first byte is the value of all its pixels."""

    def decode(content: bytes, name: str) -> torch.Tensor:
        return torch.full((3, size, size), content[0], dtype=torch.uint8)

    return decode


PHOTOS = {"b/1.jpg": 10, "a/2.PNG": 20, "b/0.jpeg": 30, "a/notes.txt": 0, "loose.jpg": 0}


def write_folder(path: Path) -> Path:
    for name, value in PHOTOS.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(bytes([value]))
    return path


def write_tar(path: Path, *, prefix: str = "") -> Path:
    with tarfile.open(path, "w") as archive:
        for name, value in {**PHOTOS, "a/._2.PNG": 0}.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = 1
            archive.addfile(member, io.BytesIO(bytes([value])))
    return path


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_photos_are_labelled_by_their_folder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "_decoder", fake_decoder)
    path = write_folder(tmp_path / "x") if kind == "folder" else write_tar(tmp_path / "x.tar")
    images = zoo.image_folder(path, 4)
    assert images.classes == ("a", "b")
    assert len(images) == 3
    assert images.labels.tolist() == [0, 1, 1]
    assert images.pixels[:, 0, 0, 0].tolist() == [20, 30, 10]
    sample, label = images[0]
    assert sample.shape == (3, 4, 4)
    assert float(sample[0, 0, 0]) == pytest.approx(20 / 255)
    assert int(label) == 0


def test_folder_without_photos_is_refused_with_what_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "_decoder", fake_decoder)
    (tmp_path / "loose.jpg").write_bytes(b"x")
    with pytest.raises(
        ValueError, match=r"no images in folders, one folder per class .*cats/1\.jpg"
    ):
        zoo.image_folder(tmp_path)


def test_missing_folder_and_other_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "_decoder", fake_decoder)
    with pytest.raises(FileNotFoundError, match="no folder or tar file"):
        zoo.image_folder(tmp_path / "nowhere")
    (tmp_path / "x.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match="neither a folder nor a tar file"):
        zoo.image_folder(tmp_path / "x.zip")


def test_damaged_tar_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "_decoder", fake_decoder)
    path = write_tar(tmp_path / "x.tar")
    path.write_bytes(path.read_bytes()[:512])
    with pytest.raises(ValueError, match=r"x\.tar is damaged .*get it again"):
        zoo.image_folder(path)


def test_photos_say_what_to_install_when_pillow_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"decoded by Pillow.*pip install pillow"):
        zoo.image_folder(write_folder(tmp_path))


def test_photos_are_decoded_and_scaled_by_pillow(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    (tmp_path / "red").mkdir()
    pillow.new("RGB", (5, 7), (255, 0, 0)).save(tmp_path / "red" / "1.png")
    images = zoo.image_folder(tmp_path, 6)
    assert images[0][0].shape == (3, 6, 6)
    assert images[0][0][:, 3, 3].tolist() == [1, 0, 0]
    (tmp_path / "red" / "2.jpg").write_bytes(b"no photo")
    with pytest.raises(ValueError, match=r"red/2\.jpg cannot be decoded"):
        zoo.image_folder(tmp_path, 6)
