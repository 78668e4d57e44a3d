# SPDX-License-Identifier: Apache-2.0
"""Network namespaces without names: they are gone when nobody is in them and nobody holds them.

    namespace = make_namespace()
    sock = inside(namespace, lambda: socket.create_server(("198.18.0.10", 0)))

A namespace is an open descriptor. It needs no cleaning up: whoever made it may be killed, and the
kernel takes it down, with its interfaces, when the last process in it has ended.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, TypeVar

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_THIS_NETWORK = "/proc/thread-self/ns/net"


def make_namespace() -> int:
    """A new network with nothing in it."""
    if sys.platform != "linux":
        raise UsageError("links are emulated on Linux only, by network namespaces")

    def make() -> int:
        _call("unshare", _CLONE_NEWNET)
        return os.open(_THIS_NETWORK, os.O_RDONLY | os.O_CLOEXEC)

    try:
        return _in_thread(make)
    except OSError as error:
        raise UsageError(
            f"no network of its own can be made for a node ({error.strerror}): emulating links needs "
            "root. Run this as root, or as `unshare --map-root-user gangline run …` where the system "
            "allows that, or take the links out of the cluster file"
        ) from error


def inside(namespace: int, action: Callable[[], T]) -> T:
    """What an action returns that is done within a namespace; its sockets stay in there."""

    def enter_and_act() -> T:
        _call("setns", namespace, _CLONE_NEWNET)
        return action()

    return _in_thread(enter_and_act)


def run_batch(
    command: str, lines: Iterable[str], *, within: int, given: Iterable[int] = ()
) -> None:
    """Gives `ip` or `tc` a batch of commands; `given` are descriptors that these speak of."""
    text = "".join(f"{line}\n" for line in lines)
    if not text:
        return
    try:
        inside(within, lambda: _run_batch(command, text, tuple(given)))
    except FileNotFoundError as error:
        raise UsageError(
            f"emulating links needs the command `{command}`, which is not there; install iproute2, "
            "or take the links out of the cluster file"
        ) from error
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split())
        raise UsageError(f"the links cannot be emulated: `{command}` said: {said}") from error


def _run_batch(command: str, text: str, given: tuple[int, ...]) -> None:
    subprocess.run(
        [command, "-batch", "-"],
        input=text,
        pass_fds=given,
        check=True,
        capture_output=True,
        text=True,
    )


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _in_thread(action: Callable[[], T]) -> T:
    """A namespace belongs to a thread: one of its own leaves the others where they are."""
    results: list[T] = []
    errors: list[BaseException] = []

    def act() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=act, name="gangline-namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors.pop()
    return results[0]
