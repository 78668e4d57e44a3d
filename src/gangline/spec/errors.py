# SPDX-License-Identifier: Apache-2.0
"""The errors that a user of gangline can meet.

    GanglineError
    ├── UsageError          a call, flag or file says something that cannot be done (also a ValueError)
    │   └── UnsupportedError    it is well-formed, but this software refuses it, and says what to do
    ├── MismatchError       workers of one job disagree (another model, data set, loop, version)
    ├── MainWorkerError     what the main worker does for all has failed
    ├── FunctionError       a function that the user gave to paramserv or map has raised
    ├── GradientError       this worker's gradient is wrong, and such workers are put out
    ├── LaunchError         a worker process could not be started, or ended badly
    │   ├── RefusedError        the coordinator put this worker out; the others train on
    │   └── LeftBehindError     the job ended without this worker, whose parameters are old
    ├── ExchangeError       an exchange with the other workers failed
    │   ├── ExchangeAborted     it was broken off on purpose, by this process
    │   ├── ServerLost          who serves a part of the parameters cannot be reached
    │   └── ExchangeMismatch    the members called different things (also a MismatchError)
    └── LogError            an event log, plan or profile cannot be read (also a ValueError)

Every message names what was wrong, what was expected, and what to do.
"""


class GanglineError(Exception):
    """The root of all errors that gangline raises on purpose."""


class UsageError(GanglineError, ValueError):
    """A call, a flag or a file asks for something that cannot be done."""


class UnsupportedError(UsageError):
    """A well-formed request that gangline refuses, because it could not be exact."""


class MismatchError(GanglineError):
    """The workers of one job disagree about what they are training."""


class GradientError(GanglineError):
    """This worker's gradient is not finite or far too large, and the job wants no such worker."""


class FunctionError(GanglineError):
    """A function that the user gave (to paramserv or map) has raised, with where it did."""


class MainWorkerError(GanglineError):
    """What the main worker does for all others (a file, a download) has failed there."""


class LaunchError(GanglineError):
    """A worker process could not be started, or ended badly."""


class RefusedError(LaunchError):
    """The coordinator does not want this worker any more, which took part: the others train on."""


class LeftBehindError(LaunchError):
    """The job ended, or went on, without this worker, which was put out: its parameters are old."""


class ExchangeError(GanglineError):
    """An exchange between workers failed: a peer died, a connection broke, a time ran out."""


class ExchangeAborted(ExchangeError):
    """An exchange was broken off on purpose by this process."""


class ServerLost(ExchangeError):
    """Who serves a shard of the parameters cannot be reached, or does not serve it any more."""

    def __init__(self, shard: int, reason: str) -> None:
        super().__init__(f"shard {shard} of the parameters is not served: {reason}")
        self.shard = shard


class ExchangeMismatch(ExchangeError, MismatchError):
    """The members of a group called different operations at the same time: their loops differ."""


class LogError(GanglineError, ValueError):
    """An artefact on disk (event log, plan, profile) cannot be read."""
