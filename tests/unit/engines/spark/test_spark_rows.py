# SPDX-License-Identifier: Apache-2.0
"""Partitions become files, files become samples, and what is wrong with them is said."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: make test-engines")

from gangline.engines.spark.rows.dataset import Rows  # noqa: E402
from gangline.engines.spark.rows.index import RowIndex  # noqa: E402
from gangline.engines.spark.rows.writing import BATCH_BYTES, write_part  # noqa: E402
from gangline.spec.errors import LaunchError, UsageError  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def batch(start: int, count: int) -> Any:
    numbers = range(start, start + count)
    return pa.RecordBatch.from_pydict(
        {
            "x": list(numbers),
            "v": [[float(one), one / 2] for one in numbers],
            "even": [one % 2 == 0 for one in numbers],
            "name": [f"row {one}" for one in numbers],
            "raw": [bytes([one]) for one in numbers],
        }
    )


def rows_in(folder: Path) -> Rows:
    parts = [
        write_part([batch(0, 5), batch(5, 3)], folder, partition=0, attempt=0),
        write_part([], folder, partition=1, attempt=4),
        write_part([batch(8, 4)], folder, partition=2, attempt=9),
    ]
    return Rows(RowIndex.of(parts), folder)


def test_a_sample_is_a_dictionary_by_column(tmp_path: Path) -> None:
    rows = rows_in(tmp_path)
    assert len(rows) == 12
    sample = rows[9]
    assert sample["x"].item() == 9
    assert sample["v"].tolist() == [9.0, 4.5]
    assert sample["even"].item() is False
    assert (sample["name"], sample["raw"]) == ("row 9", bytes([9]))


def test_a_plain_loader_gets_what_a_loader_over_rows_gets(tmp_path: Path) -> None:
    chosen = rows_in(tmp_path).select(["v", "x"], "even")
    plain = list(DataLoader(chosen, batch_size=5))
    quick = list(chosen.loader(5, shuffle=False))
    for (x, y), (other_x, other_y) in zip(plain, quick, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)
    x, y = quick[2]
    assert x.tolist() == [[10.0, 5.0, 10.0], [11.0, 5.5, 11.0]]
    assert y.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("shuffle", [True, "partitions"])
def test_a_shuffled_loader_has_each_row_once(tmp_path: Path, shuffle: bool | str) -> None:
    chosen = rows_in(tmp_path).select("x")
    seen = torch.cat(list(chosen.loader(5, shuffle=shuffle))).reshape(-1)
    assert sorted(seen.tolist()) == list(range(12))


def test_rows_that_were_read_can_be_sent_to_another_process(tmp_path: Path) -> None:
    rows = rows_in(tmp_path)
    assert rows[3]["x"] == 3
    again = pickle.loads(pickle.dumps(rows))
    assert again[3]["x"] == 3


def test_attempts_do_not_share_a_file(tmp_path: Path) -> None:
    one = write_part([batch(0, 5)], tmp_path, partition=0, attempt=0)
    other = write_part([batch(0, 5)], tmp_path, partition=0, attempt=1)
    assert one.file != other.file


def test_what_fails_in_the_middle_leaves_no_file(tmp_path: Path) -> None:
    def batches() -> Any:
        yield batch(0, 5)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        write_part(batches(), tmp_path, partition=0, attempt=0)
    assert not list(tmp_path.iterdir())


def test_large_partitions_are_cut_into_batches(tmp_path: Path) -> None:
    wide = pa.RecordBatch.from_pydict({"x": pa.array(range(BATCH_BYTES // 16), pa.int64())})
    part = write_part([wide] * 5, tmp_path, partition=0, attempt=0)
    assert part.rows == (wide.num_rows * 2, wide.num_rows * 2, wide.num_rows)
    rows = Rows(RowIndex.of([part]), tmp_path)
    assert rows[wide.num_rows * 3 + 7]["x"] == 7


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"v": [[1.0], [1.0, 2.0]]}, r"'v' are not all as long \(1 to 2"),
        ({"when": pa.array([0], pa.timestamp("us"))}, "'when' is of type timestamp"),
        ({"deep": [[[1.0]]]}, "'deep' is of type list<"),
    ],
)
def test_what_is_no_part_of_a_sample_is_named(
    tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        write_part([pa.RecordBatch.from_pydict(columns)], tmp_path, partition=0, attempt=0)


def test_lists_that_differ_between_batches_are_named(tmp_path: Path) -> None:
    big = [1.0] * (BATCH_BYTES // 8)
    batches = [pa.RecordBatch.from_pydict({"v": [one]}) for one in (big, [1.0])]
    with pytest.raises(UsageError, match="'v' are not all as long"):
        write_part(batches, tmp_path, partition=0, attempt=0)


@pytest.mark.parametrize(
    "column", [{"x": [1.0, None]}, {"x": [[1.0], None]}, {"x": [[1.0], [None]]}]
)
def test_nulls_are_refused_wherever_they_are(tmp_path: Path, column: dict[str, Any]) -> None:
    part = write_part([pa.RecordBatch.from_pydict(column)], tmp_path, partition=0, attempt=0)
    with pytest.raises(UsageError, match="1 rows have no value in column 'x'"):
        RowIndex.of([part])


@pytest.mark.parametrize(
    ("features", "label", "words"),
    [
        ([], None, "names no column"),
        (["x", "z"], None, "no column 'z'"),
        (["x"], "name", "'name' holds text"),
        (["raw"], None, "'raw' holds binary"),
    ],
)
def test_what_cannot_be_features_is_named(
    tmp_path: Path, features: list[str], label: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        rows_in(tmp_path).select(features, label)


def test_a_strange_shuffle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shuffle is True, False or"):
        rows_in(tmp_path).loader(4, shuffle="files")


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    rows = rows_in(tmp_path)
    (tmp_path / rows.index.files[1]).unlink()
    assert rows[0]["x"] == 0
    with pytest.raises(LaunchError, match=r"part-00002-9.arrow with 4 rows .* cannot be read"):
        rows[11]


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    rows = rows_in(tmp_path)
    path = tmp_path / rows.index.files[0]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(LaunchError, match="nobody may change that folder"):
        rows[0]


def test_a_file_that_was_replaced_is_named(tmp_path: Path) -> None:
    rows = rows_in(tmp_path)
    path = tmp_path / rows.index.files[1]
    with pa.ipc.new_file(str(path), batch(0, 1).schema) as writer:
        for _ in range(3):
            writer.write_batch(batch(0, 1))
    with pytest.raises(LaunchError, match="has 3 record batches, and 1 were written"):
        rows[11]
