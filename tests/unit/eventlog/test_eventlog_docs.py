# SPDX-License-Identifier: Apache-2.0
"""The page about events says what the schema says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gangline.eventlog import EVENT_KINDS
from gangline.spec.event import AnyEvent, Event

PAGE = Path(__file__).parents[3] / "docs" / "events.md"


def sections() -> dict[str, str]:
    kinds = PAGE.read_text().split("## Kinds\n")[1].split("\n## ")[0]
    parts = re.split(r"^### `(\w+)`$", kinds, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_page_has_every_kind_and_no_other() -> None:
    assert sections().keys() == EVENT_KINDS.keys()


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_the_page_explains_every_field_and_no_other(kind: str) -> None:
    documented = re.findall(r"^\| `(\w+)` \|", sections()[kind], flags=re.MULTILINE)
    assert documented == list(EVENT_KINDS[kind].__struct_fields__)


@pytest.mark.parametrize(("kind", "struct"), EVENT_KINDS.items())
def test_the_example_is_what_the_writer_writes(kind: str, struct: type[Event]) -> None:
    (example,) = re.findall(r"```json\n(.*)\n```", sections()[kind])
    event = msgspec.json.decode(example, type=AnyEvent)
    assert type(event) is struct
    assert msgspec.json.encode(event).decode() == example
