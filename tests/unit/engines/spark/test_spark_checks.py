# SPDX-License-Identifier: Apache-2.0
"""What is missing for Spark is named, with what mends it, before anything is started."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from gangline.engines.spark.checks import check_frame, check_java, check_packages, explained
from gangline.engines.spark.counting import await_slots, is_one_machine
from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

INSTALLED = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3"}


def versions(**changed: str | None):
    def version_of(name: str) -> str:
        found = {**INSTALLED, **changed}[name]
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    return version_of


def test_what_is_installed_is_taken() -> None:
    check_packages(versions())


@pytest.mark.parametrize("name", INSTALLED)
def test_a_missing_package_is_named_with_the_extra(name: str) -> None:
    with pytest.raises(LaunchError, match=rf"package {name},.*pip install 'gangline\[spark\]'"):
        check_packages(versions(**{name: None}))


@pytest.mark.parametrize("version", ["3.5.1", "5.0.0"])
def test_a_pyspark_that_does_not_fit_is_named(version: str) -> None:
    with pytest.raises(LaunchError, match=rf"pyspark is version {version}.*'pyspark>=4,<5'"):
        check_packages(versions(pyspark=version))


def test_no_java_is_named() -> None:
    with pytest.raises(LaunchError, match=r"none in PATH.*openjdk-17-jre-headless"):
        check_java({"PATH": "/nowhere"})


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=rf"JAVA_HOME is {tmp_path}"):
        check_java({"JAVA_HOME": str(tmp_path)})


def java_in(folder: Path) -> dict[str, str]:
    (folder / "bin").mkdir()
    (folder / "bin" / "java").touch()
    return {"JAVA_HOME": str(folder)}


@pytest.mark.parametrize(
    "said", ['java version "1.8.0_381"', 'openjdk version "11.0.2" 2019-01-15']
)
def test_an_old_java_is_named(tmp_path: Path, said: str) -> None:
    with pytest.raises(LaunchError, match=r"is Java (8|11), and Spark 4 takes 17 or later"):
        check_java(java_in(tmp_path), ask=lambda java: said)


def test_a_java_that_fits_is_taken(tmp_path: Path) -> None:
    check_java(java_in(tmp_path), ask=lambda java: 'openjdk version "17.0.15" 2025-04-15')


def test_a_java_that_says_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="does not say which Java it is"):
        check_java(java_in(tmp_path))  # an empty file cannot be run


@pytest.mark.parametrize("data", [[1, 2], {"x": 1}, None])
def test_what_is_no_frame_is_named(data: object) -> None:
    with pytest.raises(UsageError, match="must be a DataFrame or an RDD of pyspark, not builtins"):
        check_frame(data)


def test_a_frame_of_spark_connect_is_refused() -> None:
    remote = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})
    with pytest.raises(UsageError, match="Spark Connect"):
        check_frame(remote())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("… ModuleNotFoundError: No module named 'gangline'", "has no gangline: install"),
        ("… No module named 'pyarrow'", "has no pyarrow: install"),
        ("[PYTHON_VERSION_MISMATCH] …", "another version of python"),
    ],
)
def test_known_errors_of_executors_are_explained(text: str, words: str) -> None:
    assert words in str(explained(RuntimeError(text)))


def test_other_errors_stay_what_they_are() -> None:
    error = RuntimeError("disk full")
    assert explained(error) is error


# --- slots -------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def slots(
    found: list[int], *, master: str = "spark://h:7077", least: int = 1, most: int | None = None
):
    clock = Clock()
    last = iter([*found, *[found[-1]] * 1000])
    return await_slots(
        lambda: next(last),
        least=least,
        most=most,
        wait_s=10,
        master=master,
        clock=clock,
        pause=clock.pause,
    )


def test_as_many_as_asked_begin_as_soon_as_they_have_come() -> None:
    assert slots([0, 1, 3], most=2) == 2


def test_without_a_number_those_begin_that_have_come_when_no_more_come() -> None:
    assert slots([0, 0, 1, 2, 2, 4]) == 4


def test_fewer_than_asked_begin_when_it_is_time() -> None:
    assert slots([1, 2], most=5) == 2


def test_too_few_are_named_with_what_mends_it() -> None:
    with pytest.raises(
        LaunchError, match=r"has 1 task slots, and it takes 3, after 10 s.*Worker spark"
    ):
        slots([1], least=3)
    with pytest.raises(LaunchError, match=r"master\('local\[3\]'\)"):
        slots([1], least=3, master="local[1]")


@pytest.mark.parametrize(
    ("master", "is_one"),
    [
        ("local", True),
        ("local[*]", True),
        ("local-cluster[2,1,512]", True),
        ("spark://local:1", False),
        ("yarn", False),
    ],
)
def test_which_masters_are_one_machine(master: str, is_one: bool) -> None:
    assert is_one_machine(master) == is_one
