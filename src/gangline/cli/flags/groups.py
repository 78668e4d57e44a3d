# SPDX-License-Identifier: Apache-2.0
"""Flags that belong together, as one parameter of a command.

    class WireFlags(FlagGroup, frozen=True, kw_only=True):
        wire_ports: Annotated[str | None, typer.Option(help="…")] = None

    @grouped
    def run(script: …, wire: WireFlags) -> None: ...

The command line has one flag per field; the function gets the struct, which knows which of its flags
were given. A flag that is an option of a run says with `Sets` which field of the configuration it is.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import msgspec
import typer

from gangline.spec.config import put

if TYPE_CHECKING:
    from collections.abc import Callable


class Sets(NamedTuple):
    """Which field of a run's configuration a flag is, as `part.field`, and how its text is read."""

    path: str
    read: Callable[[Any], Any] = lambda value: value


class FlagGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What all groups are."""

    given: frozenset[str] = frozenset()
    """The fields whose flags were on the command line."""

    def put_into(self, document: dict[str, Any]) -> None:
        """Writes the options that were given into a configuration."""
        for name, sets in self._options().items():
            if name in self.given:
                put(document, sets.path, msgspec.to_builtins(sets.read(getattr(self, name))))

    def flags(self, *, are_given: bool) -> dict[str, str]:
        """The flag of each field of a configuration: of all that there are, or that were given."""
        return {
            sets.path: f"--{name.replace('_', '-')}"
            for name, sets in self._options().items()
            if name in self.given or not are_given
        }

    def _options(self) -> dict[str, Sets]:
        return {
            name: sets
            for name, hint in get_type_hints(type(self), include_extras=True).items()
            for sets in getattr(hint, "__metadata__", ())
            if isinstance(sets, Sets)
        }


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """The same command, whose groups are taken apart for the command line."""
    parameters = [_CONTEXT]
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
        context = values.pop(_CONTEXT.name)
        given = {one for one in values if _is_given(context, one)}
        for name, kind in groups.items():
            own = {one.name: values.pop(one.name) for one in _flags_of(kind)}
            values[name] = kind(**own, given=frozenset(given & own.keys()))
        function(**values)

    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    command.__annotations__ = {**annotations, "return": None}
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command


_CONTEXT = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


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
        if field.name != "given"
    ]
