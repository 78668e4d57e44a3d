# SPDX-License-Identifier: Apache-2.0
"""Flags that belong together, as one parameter of a command.

    class WireFlags(FlagGroup, frozen=True, kw_only=True):
        wire_ports: Annotated[str | None, typer.Option(help="…")] = None

    @grouped
    def run(script: …, wire: WireFlags) -> None: ...

The command line has one flag per field; the function gets the struct.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class FlagGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What all groups are."""


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """The same command, whose groups are taken apart for the command line."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[FlagGroup]] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, FlagGroup):
            groups[parameter.name] = kind
            parameters += _flags_of(kind)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, kind in groups.items():
            own = {field: values.pop(field) for field in kind.__struct_fields__}
            values[name] = kind(**own)
        function(**values)

    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    command.__annotations__ = {**annotations, "return": None}
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command


def _flags_of(kind: type[FlagGroup]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in msgspec.structs.fields(kind)
    ]
