# SPDX-License-Identifier: Apache-2.0
"""The flags of TLS, and how a machine that joins gets a certificate."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.flags.groups import FlagGroup, Sets
from gangline.files.tls import TlsFiles
from gangline.launch.certificates import find_tls_files, own_files
from gangline.launch.joining.contact import Contact
from gangline.spec.errors import LaunchError


class TlsFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags of who starts a run."""

    tls: Annotated[
        bool,
        typer.Option("--tls", help="Encrypt everything, with certificates made for the run."),
        Sets("tls.enabled"),
    ] = False
    tls_cert: Annotated[
        Path | None, typer.Option(help="Encrypt everything, with this certificate (PEM).")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key.")] = None
    tls_ca: Annotated[
        Path | None, typer.Option(help="Who must have signed the others' certificates.")
    ] = None

    @property
    def files(self) -> TlsFiles | None:
        """The user's own certificate; None where there is none."""
        given = (self.tls_cert, self.tls_key, self.tls_ca)
        return own_files(*given) if any(given) else None

    def resolve(
        self, run_dir: Path, *, run: str, host: str, names: Iterable[str] = (), makes: bool = False
    ) -> TlsFiles | None:
        """The certificates of the run: the folder's, the user's, or new ones; None without TLS."""
        makes = self.tls or makes
        hosts = (host, *names)
        return find_tls_files(run_dir, own=self.files, makes=makes, run=run, hosts=hosts)


def enrol(contact: Contact, run_dir: Path) -> TlsFiles:
    """Has the run's authority sign a certificate for this machine; its key never leaves it."""
    from gangline.files.certificates import request_certificate, write_tls_files
    from gangline.protocol.status import CertificateAnswer

    request, key = request_certificate()
    body = msgspec.json.encode({"request": request.decode()})
    try:
        document = contact.ask("/api/certificate", body=body)
        answer = msgspec.json.decode(document, type=CertificateAnswer)
    except msgspec.DecodeError as error:
        raise LaunchError(f"what answers at {contact.url} is no coordinator: {error}") from error
    assert contact.authority is not None
    return write_tls_files(
        run_dir, answer.certificate.encode(), key, authority=contact.authority.read_bytes()
    )
