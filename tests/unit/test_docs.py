# SPDX-License-Identifier: Apache-2.0
"""The user's pages name everything public, their links lead somewhere, and their examples run.

An example runs if its fence says so: ```python runnable.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import typer.main

import gangline
from gangline.cli.main import app
from gangline.control import ControlOptions
from gangline.planning.allocation.policies import ALLOCATIONS
from gangline.protocol.launch import LAUNCH_VARIABLE, Launch
from gangline.simulation.scenario import Scenario, SimulatedNode, Throttle
from gangline.spec import errors
from gangline.spec.cluster import Cluster, NetworkLink, Node
from gangline.spec.config import TRANSPORTS, RunConfig
from gangline.worker import api
from gangline.zoo import MODELS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCENARIO_KEYS = tuple(
    key
    for kind in (Scenario, SimulatedNode, Throttle)
    for key in kind.__struct_fields__
    if key != "nodes"
)
REFERENCE = (ROOT / "docs" / "reference.md").read_text()

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def section(title: str) -> str:
    """What the reference says below a heading, up to the next one of its rank or above."""
    match = re.search(rf"^(#+) {re.escape(title)}$", REFERENCE, re.MULTILINE)
    assert match, f"docs/reference.md has no heading {title!r}"
    rest = REFERENCE[match.end() :]
    end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def without_fences(text: str) -> str:
    return _FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    """The names by which the headings of a page are linked to, as GitHub makes them."""
    headings = _HEADING.findall(without_fences(page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> Iterator[Any]:
    for page in PAGES:
        for match in _LINK.finditer(without_fences(page.read_text())):
            target = match["target"]
            if "://" not in target:
                yield pytest.param(page, target, id=f"{page.name}-{target}")


def examples() -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            if match["info"].split() == ["python", "runnable"]:
                line = text[: match.start()].count("\n") + 2
                yield pytest.param(page, line, match["body"], id=f"{page.name}-{line}")


def verbs() -> dict[str, Any]:
    command: Any = typer.main.get_command(app)
    return dict(command.commands)


def flags_of(verb: Any) -> list[str]:
    """Those of a verb, and of the verbs in it."""
    own = [flag for parameter in verb.params for flag in parameter.opts]
    inner = getattr(verb, "commands", {}).values()
    return [*own, *(flag for part in inner for flag in flags_of(part))]


# --- the reference names everything public -----------------------------------------------------------


@pytest.mark.parametrize("name", gangline.__all__)
def test_the_reference_names_every_public_name(name: str) -> None:
    assert re.search(rf"`(gangline\.)?{name}\b", REFERENCE)


@pytest.mark.parametrize("name", [n for n in gangline.__all__ if n in vars(api)])
def test_the_reference_explains_every_parameter(name: str) -> None:
    text = section(f"`gangline.{name}`")
    for parameter in inspect.signature(getattr(gangline, name)).parameters.values():
        assert re.search(rf"\b{parameter.name}\b", text), parameter.name
        if isinstance(parameter.default, str | int | float):
            is_bool = isinstance(parameter.default, bool)
            shown = re.escape(str(parameter.default) if is_bool else json.dumps(parameter.default))
            assert re.search(rf"\b{parameter.name}: [^=]*= {shown}", text), parameter


@pytest.mark.parametrize("verb", verbs())
def test_the_reference_names_every_verb_and_flag(verb: str) -> None:
    text = section(f"`gangline {verb}`")
    for flag in flags_of(verbs()[verb]):
        if flag.startswith("--") and flag != "--help":
            assert re.search(rf"`{flag}\b", text), f"{verb} {flag}"


@pytest.mark.parametrize("verb", verbs())
def test_the_reference_gives_a_verb_no_flag_that_it_has_not(verb: str) -> None:
    known = flags_of(verbs()[verb])
    rows = re.findall(r"^\| `(--[a-z-]+)", section(f"`gangline {verb}`"), re.MULTILINE)
    assert set(rows) <= set(known)


def test_the_page_of_the_configuration_names_every_key_and_its_flag() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    for part in msgspec.structs.fields(RunConfig):
        is_part = isinstance(part.type, type) and issubclass(part.type, msgspec.Struct)
        fields = part.type.__struct_fields__ if is_part and part.type is not Cluster else ()
        for key in [f"{part.name}.{field}" for field in fields] or [part.name]:
            assert f"| `{key}` | `--" in page, key


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Allocations", tuple(ALLOCATIONS)),
        ("Transports", TRANSPORTS),
        ("Environment variables", (LAUNCH_VARIABLE, *Launch.__struct_fields__)),
        ("Cluster file", (*Node.__struct_fields__, *NetworkLink.__struct_fields__)),
        ("Scenario file", SCENARIO_KEYS),
        ("Models and data", tuple(MODELS)),
        ("Errors", tuple(n for n, kind in vars(errors).items() if isinstance(kind, type))),
    ],
)
def test_the_reference_names_everything_that_can_be_chosen(
    title: str, names: tuple[str, ...]
) -> None:
    text = section(title)
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_reference_says_how_often_policies_cut() -> None:
    assert f"every {ControlOptions(global_batch=1).recut_steps} steps" in section("Allocations")


# --- links and examples ------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "target"), list(links()))
def test_links_lead_somewhere(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    assert file.exists(), f"{page.name} links to {path}, which is not there"
    if anchor and file.suffix == ".md":
        assert anchor in anchors(file), f"{file.name} has no heading for #{anchor}"


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("page", "line", "body"), list(examples()))
def test_runnable_examples_run(
    page: Path,
    line: int,
    body: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(LAUNCH_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    api.shutdown()
    # As many empty lines before it, that a traceback shows the line of the page.
    code = compile("\n" * (line - 1) + body, str(page), "exec")
    try:
        exec(code, {"__name__": "__main__"})
    finally:
        api.shutdown()


def test_there_are_runnable_examples() -> None:
    assert len(list(examples())) >= 3
