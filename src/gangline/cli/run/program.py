# SPDX-License-Identifier: Apache-2.0
"""Commands whose own flags end where a script, or with `-m` a module, begins, as python's do."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

MODULE_FLAGS = ("-m", "--module")

ModuleFlag = Annotated[
    str | None,
    typer.Option(
        *MODULE_FLAGS,
        metavar="MODULE",
        help="Run a module instead of a script, as `python -m` does; its arguments follow.",
    ),
]


class ProgramCommand(TyperCommand):
    """A verb whose own flags come before the script or module; what follows that is not ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = self.num_own(args)
        if self.names_module(args[:end]):
            args = [*args[:end], "--", *args[end:]]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def num_own(self, args: list[str]) -> int:
        """How many of the arguments are flags of ours and their values."""
        is_flag = {
            name: getattr(parameter, "is_flag", False)
            for parameter in self.params
            for name in parameter.opts
        }
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] != "--":
            flag = args[index]
            index += 1 if "=" in flag or is_flag.get(flag, True) else 2
            if self.names_module([flag]):
                break
        return min(index, len(args))

    @staticmethod
    def names_module(own: list[str]) -> bool:
        """Whether a module is named among flags of ours."""
        return any(one in MODULE_FLAGS or one.startswith("--module=") for one in own)
