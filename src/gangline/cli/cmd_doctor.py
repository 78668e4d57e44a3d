# SPDX-License-Identifier: Apache-2.0
"""`gangline doctor`: what machines can do, and what to do about what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from gangline.cli.output import JsonFlag, out, print_json
from gangline.profiling.advice import Finding, Status, advise
from gangline.spec.errors import UsageError
from gangline.spec.machines.hosts import split_place
from gangline.spec.machines.link import SCHEME, JoinLink, bracketed
from gangline.spec.wire import WireSettings, parse_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

STYLES = {
    Status.OK: "green",
    Status.LIMITED: "yellow",
    Status.MISSING: "yellow",
    Status.BROKEN: "bold red",
}
DEADLINE_S = 30.0


def register(app: typer.Typer) -> None:
    """Adds the verb to the command line."""
    app.command("doctor")(doctor)


def doctor(
    coordinator: Annotated[
        str | None,
        typer.Argument(metavar="HOST:PORT|LINK", help="Say whether this coordinator is reached."),
    ] = None,
    *,
    token_file: Annotated[
        Path | None,
        typer.Option(help="With HOST:PORT: a token of the run, to have the coordinator call back."),
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="With HOST:PORT: who vouches for the coordinator.")
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Look at the machines in this hosts file, by ssh."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]", help="With --hosts: where the coordinator would listen."
        ),
    ] = None,
    wire_ports: Annotated[
        str | None,
        typer.Option(metavar="A-B", help="The ports that workers may listen on."),
    ] = None,
    deadline: Annotated[
        float,
        typer.Option(min=10.0, metavar="SECONDS", help="With --hosts: how long it may take."),
    ] = DEADLINE_S,
    as_json: JsonFlag = False,
) -> None:
    """Say what this machine, or others, can do, and what to do about what is missing."""
    ports = None if wire_ports is None else WireSettings(ports=parse_ports(wire_ports)).ports
    if coordinator is not None:
        if coordinator.startswith(SCHEME):  # what is in it besides is secret
            link = JoinLink.parse(coordinator)
            coordinator = f"{bracketed(link.host)}:{link.port}"
        if hosts is not None or listen is not None:
            raise UsageError("HOST:PORT and --hosts are two questions: ask them one by one")
        _look_at(coordinator, token_file, tls_ca, ports=ports, as_json=as_json)
        return
    if token_file is not None or tls_ca is not None:
        raise UsageError("--token-file and --tls-ca are about a coordinator: give its HOST:PORT")
    if hosts is not None:
        _look_at_hosts(hosts, listen=listen, ports=ports, deadline_s=deadline, as_json=as_json)
        return
    if listen is not None or wire_ports is not None:
        raise UsageError("--listen and --wire-ports are about hosts: name these by --hosts FILE")
    from gangline.profiling.machine import inspect_machine

    report = inspect_machine()
    findings = advise(report)
    if as_json:
        print_json(report)
    else:
        out().print(_table(findings, title=f"gangline doctor on {report.host}"), soft_wrap=False)
    if any(finding.status is Status.BROKEN for finding in findings):
        raise typer.Exit(1)


def _look_at_hosts(
    file: Path,
    *,
    listen: str | None,
    ports: tuple[int, int] | None,
    deadline_s: float,
    as_json: bool,
) -> None:
    from gangline.launch.checkup import check

    found = check(file, listen=listen, ports=ports, deadline_s=deadline_s)
    if as_json:
        print_json(
            {"hosts": [{"name": o.name, "fit": o.is_fit, "findings": o.findings} for o in found]}
        )
    else:
        for one in found:
            findings = _shortened(one.findings)
            out().print(_table(findings, title=f"host {one.name}"), soft_wrap=False)
    if not all(one.is_fit for one in found):
        raise typer.Exit(1)


def _shortened(findings: Sequence[Finding]) -> list[Finding]:
    """What is well in one line, and then what is not: there may be many hosts."""
    well = [one for one in findings if one.status is Status.OK and not one.advice]
    rest = [one for one in findings if one not in well]
    if not well:
        return rest
    found = "; ".join(f"{one.what} {one.found}" for one in well)
    return [Finding(what="well", found=found, status=Status.OK), *rest]


def _look_at(
    address: str,
    token_file: Path | None,
    tls_ca: Path | None,
    *,
    ports: tuple[int, int] | None,
    as_json: bool,
) -> None:
    from gangline.launch.joining.contact import Contact
    from gangline.launch.reachability import examine, identify

    host, port = split_place(address, name="HOST:PORT")
    if not port:
        raise UsageError(f"{address} names no port: write HOST:PORT, such as {address}:7700")

    def ask(path: str) -> bytes:
        assert token_file is not None
        scheme = "wss" if tls_ca is not None or identify(host, port).has_tls else "ws"
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        return Contact(url=url, token_file=token_file, authority=tls_ca).ask(path)

    found = list(examine(host, port, ports=ports, ask=None if token_file is None else ask))
    if as_json:
        print_json({"address": address, "findings": found})
    else:
        out().print(_table(found, title=f"the coordinator at {address}"), soft_wrap=False)
    if any(finding.status is Status.BROKEN for finding in found):
        raise typer.Exit(1)


def _table(findings: Sequence[Finding], *, title: str) -> Table:
    table = Table(title=Text(title), title_justify="left")
    for heading in ("what", "finding", "", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        # Text, since a plain string would lose the brackets of `gangline[demo]` as markup.
        table.add_row(
            finding.what,
            Text(finding.found),
            Text(finding.status.value, style=STYLES[finding.status]),
            Text(finding.advice),
        )
    return table
