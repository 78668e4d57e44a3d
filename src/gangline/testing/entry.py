# SPDX-License-Identifier: Apache-2.0
"""The process of a pool: takes tasks from a pipe, one after the other, until the pipe is closed.

Run by path: `python entry.py DESCRIPTOR`.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from multiprocessing.connection import Connection

import msgspec

from gangline.testing.task import Answer, Task


def main(descriptor: int) -> None:
    """Serves until the parent closes its end."""
    # Only what is started on purpose may outlive an `exec`; the pipe must close with this process.
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    while True:
        try:
            task = msgspec.msgpack.decode(connection.recv_bytes(), type=Task)
        except EOFError:
            return
        connection.send_bytes(msgspec.msgpack.encode(_perform(task)))


def _perform(task: Task) -> Answer:
    before = dict(os.environ)
    os.environ.update(task.environment)
    sys.path[:] = task.path
    try:
        value = pickle.loads(task.function)(*pickle.loads(task.arguments))
        return Answer(value=pickle.dumps(value))
    except BaseException:
        text = traceback.format_exc()
        sys.stderr.write(text)
        _forget_runtime()  # while the exception is handled: that is how the runtime sees it
        return Answer(traceback=text)
    finally:
        _forget_runtime()
        os.environ.clear()
        os.environ.update(before)


def _forget_runtime() -> None:
    """Ends the runtime's state, if the task used it, so that the next task starts from nothing."""
    api = sys.modules.get("gangline.worker.api")
    if api is not None:
        api.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
