# SPDX-License-Identifier: Apache-2.0
"""How two machines differ, and what to do about it."""

from __future__ import annotations

import pytest

from gangline.launch.joining.surroundings import imports_of, surroundings_here, surroundings_of
from gangline.spec.errors import UsageError
from gangline.spec.machines.surroundings import Surroundings, differences
from gangline.version import VERSION

HERE = Surroundings(python="3.11.7", packages={"torch": "2.13.0+cpu", "numpy": "2.1.0"})


def there(python: str = "3.11.7", **packages: str) -> Surroundings:
    return Surroundings(python=python, packages={**HERE.packages, **packages})


def test_machines_that_are_alike_have_no_differences() -> None:
    assert differences(there(), HERE) == []


@pytest.mark.parametrize(
    ("theirs", "text", "is_grave"),
    [
        (there("3.12.1"), "Python 3.11.7 here, 3.12.1 there; to mend it: python3.12 -m venv", True),
        (there("3.11.2"), "Python 3.11.7 here, 3.11.2 there; to mend it: install", False),
        (there(torch="2.12.1"), "torch 2.13.0+cpu here, 2.12.1 there; to mend it: pip", True),
        (there(torch="2.13.1"), "pip install 'torch==2.13.1'", False),
        (there(torch="2.13.0+cu130"), "pip install 'torch==2.13.0'", False),
        (there(numpy="2.2.0"), "numpy 2.1.0 here, 2.2.0 there; to mend it: pip install", False),
        (there(pandas="3.0.0"), "pandas is missing here, 3.0.0 there", False),
    ],
)
def test_every_difference_is_named_with_what_mends_it(
    theirs: Surroundings, text: str, is_grave: bool
) -> None:
    [found] = differences(theirs, HERE)
    assert text in str(found)
    assert found.is_grave is is_grave


def test_grave_differences_come_first() -> None:
    found = differences(there("3.12.0", numpy="1.0", torch="1.0"), HERE)
    assert [one.is_grave for one in found] == [True, True, False]


def test_what_nobody_can_mean_is_refused() -> None:
    for told in (
        there("3.11; rm -rf /"),
        there(**{"x'; rm": "1"}),
        there(numpy="1'; rm -rf /"),
        there(**{f"p{number}": "1" for number in range(1001)}),
    ):
        with pytest.raises(UsageError, match="refused"):
            told.check()
    there(pandas="").check()


def test_imports_are_found_wherever_they_are_without_running_anything() -> None:
    source = b"import a.b, c\nfrom d.e import f\nfrom . import g\ndef h():\n    import i\nraise X\n"
    assert imports_of(source) == {"a", "c", "d", "i"}
    assert imports_of(b"not python (") == imports_of(b"\0") == set()


def test_packages_are_those_that_are_imported_and_installed() -> None:
    sources = {
        "train.py": b"import numpy, json, helper, pkg.model, no_such_package_of_anybody, gangline\n",
        "helper.py": b"import yaml_of_nobody\n",
        "pkg/model.py": b"import msgspec\n",
    }
    found = surroundings_of(sources)
    assert set(found.packages) == {"numpy", "msgspec", "torch", "gangline"}
    assert found.packages["gangline"] == VERSION
    assert differences(found, surroundings_here(found.packages)) == []
