# SPDX-License-Identifier: Apache-2.0
"""The flags of TLS, and where a run's certificates come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gangline.cli.flag_groups import FlagGroup
from gangline.files.tls import ServerTls, TlsFiles, read_tls_files, server_context
from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from gangline.cli.contact import Contact

_ENCRYPTED = ("wire", "wire-tcp")


class TlsFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags of who starts a run."""

    tls: Annotated[
        bool, typer.Option("--tls", help="Encrypt everything, with certificates made for the run.")
    ] = False
    tls_cert: Annotated[
        Path | None, typer.Option(help="Encrypt everything, with this certificate (PEM).")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key.")] = None
    tls_ca: Annotated[
        Path | None, typer.Option(help="Who must have signed the others' certificates.")
    ] = None

    def resolve(self, run_dir: Path, *, run: str, host: str) -> TlsFiles | None:
        """The certificates of the run: the folder's, the user's, or new ones; None without TLS."""
        given = (self.tls_cert, self.tls_key, self.tls_ca)
        if any(given):
            files = own_files(*given)
            files.write(run_dir)
            return files
        found = read_tls_files(run_dir)
        if found is not None or not self.tls:
            return found
        from gangline.files.certificates import make_tls_files, own_hosts

        return make_tls_files(run_dir, run=run, hosts=own_hosts(host))

    def check_transport(self, transport: str | None) -> None:
        """Refuses transports that would send the gradients in the clear."""
        is_on = self.tls or any((self.tls_cert, self.tls_key, self.tls_ca))
        if is_on and transport is not None and transport not in _ENCRYPTED:
            raise UsageError(
                f"--transport {transport} does not encrypt what it sends, and TLS was asked for: "
                "use --transport wire"
            )


def own_files(cert: Path | None, key: Path | None, authority: Path | None) -> TlsFiles:
    """The user's certificate, which must come with its key and its authority."""
    if cert is None or key is None or authority is None:
        raise UsageError(
            "a certificate of your own needs three files: --tls-cert, --tls-key and --tls-ca; "
            "leave out all of them and give --tls to have some made"
        )
    for path in (cert, key, authority):
        if not path.is_file():
            raise UsageError(f"there is no file {path} (looked in {Path.cwd()})")
    files = TlsFiles(
        certificate=str(cert.resolve()),
        key=str(key.resolve()),
        authority=str(authority.resolve()),
    )
    server_context(files)  # an error now rather than in every worker
    return files


def server_tls(files: TlsFiles) -> ServerTls:
    """What the coordinator serves with."""
    context = server_context(files)
    if files.authority_key is None:
        return ServerTls(context)
    from gangline.files.certificates import Authority

    return ServerTls(context, Authority.read(Path(files.authority), Path(files.authority_key)))


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
