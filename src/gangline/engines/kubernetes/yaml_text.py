# SPDX-License-Identifier: Apache-2.0
"""Writes manifests as YAML, the form in which people read and change them.

Manifests are dicts, lists, strings, whole numbers and truth values, so no YAML library is needed. A
string that could be read as something else is quoted as JSON quotes it, which YAML reads alike.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PLAIN = re.compile(r"(--)?[A-Za-z_/][A-Za-z0-9_./-]*")
_PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
"""What JSON writes for one character beyond the first 65536."""
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def documents(values: Iterable[dict[str, Any]]) -> str:
    """Several documents in one file."""
    return "---\n".join("".join(f"{line}\n" for line in _lines(value)) for value in values)


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _entry(f"{_scalar(key)}:", inner)
    elif isinstance(value, list) and value:
        for inner in value:
            first, *rest = _lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) and _is_block(value):
        yield f"{key} |"
        yield from (f"  {line}" for line in value.splitlines())
    elif isinstance(value, dict | list) and value:
        yield key
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{key} {_scalar(value)}"


def _is_block(text: str) -> bool:
    """Whether a text, such as a certificate, is better read line by line, and comes back the same."""
    lines = text.split("\n")
    is_whole = text.endswith("\n") and len(lines) > 2 and text.isascii()
    return is_whole and all(line.isprintable() and line[:1].strip() for line in lines[:-1])


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else _PAIR.sub(_whole, json.dumps(value))
    if isinstance(value, bool | int | dict | list) or value is None:
        return json.dumps(value)
    raise TypeError(f"a manifest has no {type(value).__name__}: {value!r}")


def _whole(pair: re.Match[str]) -> str:
    """YAML has one escape for such a character, and takes two for two."""
    high, low = (int(part, 16) for part in pair.groups())
    return f"\\U{0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF):08x}"
