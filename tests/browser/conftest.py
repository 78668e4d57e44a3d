# SPDX-License-Identifier: Apache-2.0
"""A real browser for the tests of pages; where there is none, they are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHROMIUM = Path("/usr/bin/chromium-headless-shell")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for the tests of a file: its event loop must not be there for other tests."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: `make browser` installs it"
    )
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM}: `make browser` installs it")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; any error in one, on its console or not, fails the test."""
    problems: list[str] = []
    contexts = []

    def open_page(**options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("console", lambda message: _note(problems, message))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems


def _note(problems: list[str], message: Any) -> None:
    if message.type in ("error", "warning"):
        problems.append(f"console: {message.text}")


@pytest.fixture
def page(new_page: Callable[..., Any]) -> Any:
    """A page that fails the test if anything goes wrong in it."""
    return new_page()
