# SPDX-License-Identifier: Apache-2.0
"""Puts a coordinator together, whoever needs one: a process, a worker under torchrun, a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.server.driver import Driver
from gangline.coordinator.server.serve import CoordinatorServer
from gangline.coordinator.settings import Settings
from gangline.files.addresses import own_addresses
from gangline.files.config import PROFILE_FILE, read_config
from gangline.spec.config import RunConfig
from gangline.spec.machines.link import is_wildcard
from gangline.spec.profile import ClusterProfile

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.coordinator.server.access import Keys
    from gangline.coordinator.server.lifeline import Lifeline
    from gangline.coordinator.server.until_done import UntilDone
    from gangline.files.tls import ServerTls


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """Which run a coordinator serves, and where."""

    config: RunConfig
    reserved: int = 0
    """Workers bring the numbers below this one themselves."""
    profile: ClusterProfile | None = None
    """What is known of each worker's node: the structure is planned from it; None: it is not."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    announced: str | None = None
    """The address of this machine that is announced; None: the one that is listened on."""

    @classmethod
    def of_run(cls, run_dir: Path) -> Post:
        """For the run that a launcher has begun in a folder."""
        config = read_config(run_dir)
        path = run_dir / PROFILE_FILE
        is_planned = config.exchange.is_planned and path.is_file()
        return cls(
            config=config,
            reserved=config.num_own,
            profile=ClusterProfile.from_file(path) if is_planned else None,
            host=config.listen_at[0],
            announced=announced_host(config.listen_at[0]),
        )


def announced_host(host: str) -> str | None:
    """Where the workers of this machine find a coordinator that listens on all interfaces.

    They listen on the interface that faces it, which must be one that others reach.
    """
    if not is_wildcard(host):
        return None
    return next(iter(own_addresses()), "127.0.0.1")


def assemble(
    post: Post,
    run_dir: Path | None = None,
    *,
    keys: Keys,
    tls: ServerTls | None = None,
    lifeline: Lifeline | UntilDone | None = None,
) -> CoordinatorServer:
    """A coordinator on its port, which does not serve yet. Without a folder nothing outlives it."""
    settings = Settings.of(post.config, reserved=post.reserved, profile=post.profile)
    return CoordinatorServer(
        Driver(settings, run_dir),
        keys=keys,
        host=post.host,
        port=post.port,
        tls=tls,
        lifeline=lifeline,
        run_dir=run_dir,
        may_kill=post.config.survival.allow_chaos,
    )
