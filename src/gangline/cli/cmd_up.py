# SPDX-License-Identifier: Apache-2.0
"""`gangline up`: starts a coordinator alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.detectors import DEFAULT_DETECTOR, DetectorFlag, EverybodyFlag
from gangline.cli.flag_groups import FlagGroup, grouped
from gangline.cli.output import JsonFlag, print_json, say
from gangline.cli.patience import DEFAULT_PATIENCE_S, PatienceFlag
from gangline.cli.tls_options import TlsFlags
from gangline.coordinator.detectors import load_detector
from gangline.files.tls import TlsFiles
from gangline.files.tokens import WORKER_TOKEN
from gangline.spec.cluster import Cluster
from gangline.spec.config import ManagerConfig, RunConfig, SurvivalConfig
from gangline.spec.profile import ClusterProfile


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("up")(grouped(up))


class PlaceFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say which run it is, and where its coordinator is found."""

    run_dir: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/up")
    name: Annotated[str | None, typer.Option(help="The run's name.")] = None
    host: Annotated[str, typer.Option(help="The interface to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 0
    token_file: Annotated[
        Path | None, typer.Option(help="A file that holds the workers' token (made if missing).")
    ] = None
    reserved: Annotated[
        int, typer.Option(min=0, help="Workers bring the numbers below this one themselves.")
    ] = 0
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What is known of each worker's node: plan the structure from it."
        ),
    ] = None

    @property
    def run(self) -> str:
        """The run's name: the folder's, where none was given."""
        return self.name or self.run_dir.name


def up(
    workers: Annotated[int, typer.Option(min=1, help="How many workers will join.")],
    place: PlaceFlags,
    tls: TlsFlags,
    patience: PatienceFlag = DEFAULT_PATIENCE_S,
    detector: DetectorFlag = DEFAULT_DETECTOR,
    everybody: EverybodyFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Start a coordinator alone, and say how workers find it."""
    from gangline.coordinator.server import Post
    from gangline.coordinator.server.process import serve

    load_detector(detector)
    post = Post(
        config=RunConfig(
            run=place.run,
            cluster=Cluster.of_speeds((1.0,), workers=workers),
            survival=SurvivalConfig(patience_s=patience),
            manager=ManagerConfig(detector=detector, everybody=everybody),
        ),
        reserved=place.reserved,
        profile=None if place.profile is None else ClusterProfile.from_file(place.profile),
        host=place.host,
        port=place.port,
    )
    place.run_dir.mkdir(parents=True, exist_ok=True)
    token = place.token_file or place.run_dir / WORKER_TOKEN
    files = tls.resolve(place.run_dir, run=place.run, host=place.host)

    def announce(url: str) -> None:
        command = join_command(url, token_file=token, tls=files)
        if as_json:
            print_json({"run": place.run, "url": url, "token_file": str(token), "join": command})
        else:
            say(f"coordinator of {place.run} at {url}, token in {token}")
            say(f"workers join it with: {command}")

    serve(post, place.run_dir, token_file=token, announce=announce)


def join_command(url: str, *, token_file: Path, tls: TlsFiles | None) -> str:
    """What to type on another machine."""
    address = url.partition("://")[2]
    parts = ["gangline join", address, f"--token-file {token_file}"]
    if tls is not None:
        parts.append(f"--tls-ca {tls.authority}")
        if tls.authority_key is None:
            parts.append("--tls-cert CERTIFICATE --tls-key KEY")
    return " ".join([*parts, "train.py"])
