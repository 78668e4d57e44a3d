# SPDX-License-Identifier: Apache-2.0
"""`gangline top`: a running job in a terminal, as it goes."""

from __future__ import annotations

import contextlib
import queue
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from gangline.cli.live.screen import TopScreen, summary, told
from gangline.cli.output import out, say
from gangline.launch.watching import Opener, Told, find_stream, read_told
from gangline.protocol.live import Snapshot
from gangline.spec.errors import GanglineError, LaunchError

PATIENCE_S = 15.0
"""So long a coordinator may be away: it may be started again."""
_RETRY_S = 0.5
_LOOK_S = 0.1
_PLAIN_S = 10.0
_QUIT = ("q", "Q", "\x03")


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("top")(top)


def top(
    place: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run folder, HOST:PORT, or a link of the dashboard."),
    ],
    token_file: Annotated[
        Path | None,
        typer.Option(help="An observer's token file (default: in the run folder)."),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="With HOST:PORT or a link: who must have signed its certificate."),
    ] = None,
) -> None:
    """Show a running job in the terminal, as it goes; q quits."""
    line = Line(find_stream(place, token_file=token_file, authority=tls_ca))
    console = out()
    if console.is_terminal and sys.stdin.isatty():
        with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            _show(line, live)
    else:
        _print(line)
    if line.error is not None:
        raise line.error
    say("the run is over")


class Line:
    """Reads a stream in a thread of its own, and connects again where it ends."""

    def __init__(self, opened: Opener) -> None:
        self._opened = opened
        self._told: queue.SimpleQueue[Told | str | None] = queue.SimpleQueue()
        self.error: GanglineError | None = None
        """Why nothing came of it, where nothing ever came."""
        threading.Thread(target=self._follow, name="gangline-top", daemon=True).start()

    def take(self, timeout_s: float) -> Told | str | None:
        """What was told next, a word on the line itself, or None where all is over.

        Raises queue.Empty where nothing comes in time.
        """
        return self._told.get(timeout=timeout_s)

    def _follow(self) -> None:
        heard_s, has_heard = time.monotonic(), False
        while time.monotonic() - heard_s < PATIENCE_S:
            try:
                with self._opened() as stream:
                    for one in read_told(stream):
                        heard_s, has_heard = time.monotonic(), True
                        self._told.put(one)
            except (GanglineError, OSError) as error:
                if not has_heard:
                    own = error if isinstance(error, GanglineError) else None
                    self.error = own or LaunchError(str(error))
                    break
            self._told.put("the coordinator does not answer: the run is over, or it comes back")
            time.sleep(_RETRY_S)
        self._told.put(None)


def _show(line: Line, live: Live) -> None:
    """Draws until the run is over, or somebody presses q."""
    screen = TopScreen()
    while not (select.select([sys.stdin], [], [], 0)[0] and sys.stdin.read(1) in _QUIT):
        try:
            found = line.take(_LOOK_S)
        except queue.Empty:
            continue
        if found is None:
            return
        if isinstance(found, str):
            screen.line = found
        elif isinstance(found, Snapshot):
            screen.now, screen.line = found, ""
        elif not screen.note(found):
            continue
        live.update(screen.draw(live.console.width), refresh=True)
    raise typer.Exit


def _print(line: Line) -> None:
    """Plain lines: what is decided as it comes, and how the job stands now and then."""
    screen, printed_s = TopScreen(), 0.0
    while True:
        with contextlib.suppress(queue.Empty):
            found = line.take(_PLAIN_S)
            if found is None:
                return
            if isinstance(found, Snapshot):
                if time.monotonic() - printed_s >= _PLAIN_S:
                    printed_s = time.monotonic()
                    say(summary(found))
            elif not isinstance(found, str) and screen.note(found):
                say(told(found))


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Keys come one by one, and are not shown; the terminal is left as it was."""
    import termios
    import tty

    before: list[Any] = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
