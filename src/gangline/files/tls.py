# SPDX-License-Identifier: Apache-2.0
"""A run's TLS: which files it uses, and what both ends of a connection make of them.

The run folder says in `tls.json` which files those are, so that a coordinator that is started again,
and everybody who looks for it there, uses the same.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.files.plainfile import read_plain, replace_plain
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.files.certificates import Authority
    from gangline.spec.wire import WireSettings

TLS_FILE = "tls.json"


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Three PEM files, as absolute paths; and, where the run has an authority of its own, its key."""

    certificate: str
    key: str
    authority: str
    authority_key: str | None = None

    def write(self, run_dir: Path) -> None:
        """Notes the files in the run folder."""
        replace_plain(run_dir / TLS_FILE, msgspec.json.encode(self))

    def applied_to(self, settings: WireSettings) -> WireSettings:
        """The same settings of the wire, with these files."""
        return msgspec.structs.replace(
            settings, certificate=self.certificate, key=self.key, authority=self.authority
        )


class ServerTls(NamedTuple):
    """What a coordinator that speaks TLS holds."""

    context: ssl.SSLContext
    authority: Authority | None = None
    """Signs the certificates of machines that join; None where they bring their own."""
    authority_pem: str = ""
    """Who vouches for the coordinator: what machines that join are given."""


def read_tls_files(run_dir: Path) -> TlsFiles | None:
    """The files that a run uses; None where it does not use TLS."""
    path = run_dir / TLS_FILE
    try:
        return msgspec.json.decode(read_plain(path), type=TlsFiles)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} does not name the run's certificates: {error}") from error


def authority_of(run_dir: Path) -> Path | None:
    """Who vouches for the coordinator of the run in this folder; None where it has no TLS."""
    files = read_tls_files(run_dir)
    return None if files is None else Path(files.authority)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For the coordinator. Its clients are known by their tokens, not by certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the certificate {files.certificate} cannot be used with the key {files.key}: {error}; "
            "both must be PEM files that belong together"
        ) from error
    return context


def client_context(authority: Path | str | None) -> ssl.SSLContext:
    """For who connects to a coordinator: it must have a certificate, of that authority."""
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the authority's file {authority} cannot be used: {error}; give the PEM file that "
            "`gangline up --tls` names, with --tls-ca"
        ) from error


def explain(error: ssl.SSLError, *, url: str, authority: Path | str | None) -> str:
    """Why a coordinator was not trusted, and what to do."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"no TLS with what answers at {url}: {error.reason or error}"
    said = error.verify_message
    whose = f"the authority in {authority}" if authority else "this system's authorities"
    if "expired" in said or "not yet valid" in said:
        return (
            f"the certificate of the coordinator at {url} is not valid at this time ({said}): look "
            "at the clocks of both machines, or have a new one made"
        )
    if "mismatch" in said or "doesn't match" in said or "not valid for" in said:
        return (
            f"the certificate of the coordinator at {url} is for another address ({said}): use the "
            "address that `gangline up` printed, or have one made for this address (--address)"
        )
    return (
        f"{whose} does not vouch for the coordinator at {url} ({said}): give the file that "
        "`gangline up --tls` names, with --tls-ca"
    )


def server_tls(files: TlsFiles) -> ServerTls:
    """What the coordinator serves with."""
    context = server_context(files)
    try:
        pem = Path(files.authority).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the authority's file {files.authority} cannot be read: {error}"
        ) from error
    if files.authority_key is None:
        return ServerTls(context, None, pem)
    from gangline.files.certificates import Authority

    authority = Authority.read(Path(files.authority), Path(files.authority_key))
    return ServerTls(context, authority, pem)


def fingerprint_of(certificate: bytes) -> str:
    """What a certificate (DER) is known by in a link: 160 bits of its SHA-256."""
    return base64.urlsafe_b64encode(hashlib.sha256(certificate).digest()[:20]).decode().rstrip("=")


def own_fingerprint(files: TlsFiles | None) -> str:
    """The fingerprint of the certificate that a run's coordinator shows; empty without TLS."""
    if files is None:
        return ""
    try:
        text = Path(files.certificate).read_text("ascii")
        first = text[text.index(ssl.PEM_HEADER) :].partition(ssl.PEM_FOOTER)[0] + ssl.PEM_FOOTER
        return fingerprint_of(ssl.PEM_cert_to_DER_cert(first))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the certificate {files.certificate}: {error}") from error
