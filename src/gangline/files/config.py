# SPDX-License-Identifier: Apache-2.0
"""Run configurations as files: the one that a user writes, and the one in a run folder."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.files.plainfile import read_plain, replace_plain
from gangline.spec.config import RunConfig
from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

CONFIG_FILE = "config.json"
PROFILE_FILE = "profile.json"
"""What is known of the nodes, for a structure that is planned."""


def read_document(path: Path) -> dict[str, Any]:
    """What a user's file says, TOML or JSON; every mistake that can be seen in it alone is named."""
    decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
    try:
        document = decode(path.read_bytes())
        if not isinstance(document, dict):
            raise UsageError(f"a table of parts was expected, not {type(document).__name__}")
        config_of(document)
    except OSError as error:
        raise UsageError(f"cannot read the run configuration {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UsageError) as error:
        raise UsageError(f"the run configuration {path} is not usable: {error}") from error
    return document


def config_of(document: dict[str, Any]) -> RunConfig:
    """The configuration that a document holds; raises UsageError, which names the field."""
    _check_keys(document, RunConfig, within="")
    try:
        return msgspec.convert(document, type=RunConfig)
    except msgspec.ValidationError as error:
        what, _, where = str(error).replace("`$.", "`").rpartition(" - at ")
        if isinstance(error.__cause__, UsageError) and where.strip("`") in what:
            raise error.__cause__ from None  # it says where by itself
        raise UsageError(f"{what} - at {where}") from error


def write_config(config: RunConfig, run_dir: Path) -> None:
    """Keeps a run's configuration in its folder."""
    replace_plain(run_dir / CONFIG_FILE, shown(config).encode() + b"\n")


def read_config(run_dir: Path) -> RunConfig:
    """The configuration of the run in a folder."""
    path = run_dir / CONFIG_FILE
    try:
        return msgspec.json.decode(read_plain(path), type=RunConfig)
    except OSError as error:
        raise LaunchError(
            f"cannot read the run's configuration {path}: {error.strerror}"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LaunchError(f"{path} is not a run's configuration: {error}") from error


def shown(config: RunConfig) -> str:
    """The configuration as JSON that people can read, and `--config` takes."""
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


def _check_keys(document: dict[str, Any], kind: type[msgspec.Struct], *, within: str) -> None:
    """Names a key that is unknown, and those that are known in its place."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in document.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            place = f"[{within}] has" if within else "there are"
            raise UsageError(
                f"there is no key {within}{'.' if within else ''}{key}: "
                f"{hint}{place} {', '.join(fields)}"
            )
        inner = fields[key]
        if (
            isinstance(value, dict)
            and isinstance(inner, type)
            and issubclass(inner, msgspec.Struct)
        ):
            _check_keys(value, inner, within=f"{within}.{key}" if within else key)
