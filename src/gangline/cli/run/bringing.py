# SPDX-License-Identifier: Apache-2.0
"""Shows whose code a machine is about to run, asks, and has it brought."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from gangline.cli.flags.groups import FlagGroup
from gangline.cli.flags.up_flags import DEFAULT_MAX_CODE, MaxCodeFlag
from gangline.cli.invitation_lines import count
from gangline.cli.output import err, say, warn
from gangline.launch.joining.contact import Contact
from gangline.launch.joining.fetching import fetch_code, offered_code
from gangline.launch.joining.surroundings import surroundings_here
from gangline.launch.program import Program, check_script
from gangline.spec.errors import UsageError
from gangline.spec.machines.code import CodeManifest, in_mib
from gangline.spec.machines.surroundings import Difference, differences

_SHOWN = 200


class BringFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags of who has no copy of the script."""

    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Run the code that is brought without asking.")
    ] = False
    max_code: MaxCodeFlag = DEFAULT_MAX_CODE
    allow_differences: Annotated[
        bool,
        typer.Option(
            "--allow-differences", help="Join with another Python or torch than the others have."
        ),
    ] = False

    def compared(self, contact: Contact) -> CodeManifest:
        """What the job's first machine offers, or nothing; this machine must be like that one."""
        offered = offered_code(contact)
        if offered is None:
            return CodeManifest(files=())
        offered.check(max_bytes=self.max_code << 20)
        theirs = offered.surroundings
        if theirs is not None:
            self._judge(differences(theirs, surroundings_here(theirs.packages)))
        return offered

    def _judge(self, found: list[Difference]) -> None:
        grave = [one for one in found if one.is_grave]
        if grave and not self.allow_differences:
            every = "".join(f"\n  {one}" for one in found)
            raise UsageError(
                f"this machine differs from the job's first one:{every}\nmend it, or join all the "
                "same with --allow-differences"
            )
        for one in found:
            warn(str(one))


class Bringing(NamedTuple):
    """Code that may be brought."""

    manifest: CodeManifest
    contact: Contact
    folder: Path
    run: str
    is_agreed: bool
    as_json: bool

    def bring(self) -> tuple[Program, Path]:
        """What to run, and where, when it was agreed to."""
        manifest = self.manifest
        if not manifest.is_offered:
            raise UsageError(
                "nothing to run: the job's first machine offers no code; give the script, "
                "`gangline join ADDRESS train.py`, or a module, with -m"
            )
        if not self.as_json:
            for line in self._lines(manifest):
                say(line)
        self._agree()
        code = fetch_code(self.contact, manifest, self.folder)
        workplace = code / manifest.folder
        workplace.mkdir(parents=True, exist_ok=True)
        return _program(manifest, code), workplace

    def _lines(self, code: CodeManifest) -> list[str]:
        place = self.contact.url.partition("://")[2]
        shown = [f"  {one.name}  {in_mib(one.size)}" for one in code.files[:_SHOWN]]
        if len(code.files) > _SHOWN:
            shown.append(f"  … and {len(code.files) - _SHOWN} more")
        command = _printable(shlex.join(("python", *code.command)))
        return [
            f"{place} offers the code of {self.run}: {count(code)}, fingerprint {code.fingerprint}",
            *shown,
            f"to be run here, as you: {command}",
        ]

    def _agree(self) -> None:
        if self.is_agreed:
            return
        if self.as_json or not sys.stdin.isatty():
            raise UsageError(
                "nobody can be asked here whether the code of another machine shall be run: give "
                "--yes if it shall, or a copy of the script"
            )
        if not typer.confirm("Bring this code here and run it?"):
            err().print("nothing was brought")
            raise typer.Exit(1)


def _program(manifest: CodeManifest, code: Path) -> Program:
    if manifest.script is None:
        name = str(manifest.module).rpartition(".")[2]
        return Program(name, manifest.arguments, module=manifest.module)
    script = code / manifest.script
    check_script(script)
    return Program(script.stem, manifest.arguments, script=script)


def _printable(text: str) -> str:
    """Nothing that a terminal would act on."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
