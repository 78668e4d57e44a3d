# SPDX-License-Identifier: Apache-2.0
"""A run's configuration from the command line: what a file says, and flags, which go before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gangline.files.config import config_of, read_document
from gangline.launch import resolve
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gangline.cli.flags.groups import FlagGroup
    from gangline.cli.flags.tls_options import TlsFlags
    from gangline.cli.run.flags import ClusterFlags
    from gangline.spec.config import RunConfig


def configured(
    file: Path | None, *groups: FlagGroup, cluster: ClusterFlags, tls: TlsFlags
) -> RunConfig:
    """What a file and the flags come to, checked; an error names the flag that is wrong."""
    document: dict[str, Any] = {} if file is None else read_document(file)
    if cluster.is_described:
        document["cluster"] = msgspec.to_builtins(cluster.resolve())
    all_groups = (cluster, tls, *groups)
    for group in all_groups:
        group.put_into(document)
    own = tls.files
    if own is not None:
        names = {name: getattr(own, name) for name in ("certificate", "key", "authority")}
        document["wire"] = {**document.get("wire", {}), **names}
    try:
        return resolve(config_of(document), is_described="cluster" in document)
    except UsageError as error:
        raise type(error)(_in_words(str(error), all_groups, file=file)) from error


def _in_words(message: str, groups: Iterable[FlagGroup], *, file: Path | None) -> str:
    """An error in the words of who typed the command: with flags where flags were given."""
    said = message
    for group in groups:
        for path, flag in group.flags(are_given=file is not None).items():
            if "." in path:  # a name such as `run` is a word, too
                said = said.replace(path, flag)
    is_of_flag = file is None or said != message
    return said if is_of_flag else f"the run configuration {file} is not usable: {said}"
