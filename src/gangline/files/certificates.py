# SPDX-License-Identifier: Apache-2.0
"""Makes a run's certificate authority, and the certificates that it vouches for.

Imported only where certificates are made: `--tls`, and a coordinator that signs for who joins.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from typing import TYPE_CHECKING

import psutil
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gangline.files.tls import TlsFiles
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WORKER_NAME = "worker.gangline.invalid"
"""In the certificates of workers: no coordinator can be reached by a name that ends like this."""
VALID = datetime.timedelta(days=365)
_SKEW = datetime.timedelta(hours=1)
"""Clocks of other machines may be behind."""
_MAX_REQUEST_CHARS = 16384
_MAX_ADDRESSES = 32
_FOLDER = "tls"


class Authority:
    """Vouches for the machines of one run."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def make(cls, run: str) -> Authority:
        """A new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"gangline run {run}")
        now = datetime.datetime.now(datetime.UTC)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = (
            _builder(name, issuer=name, public_key=key.public_key(), now=now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def read(cls, certificate_file: Path, key_file: Path) -> Authority:
        """The one in two files."""
        try:
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
            key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise UsageError(
                f"the run's authority in {certificate_file} and {key_file} cannot be used: {error}"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UsageError(f"{key_file} is not the key that `--tls` made")
        return cls(certificate, key)

    @property
    def pem(self) -> bytes:
        """Its certificate, which clients verify others with."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self._key)

    def issue(self, hosts: Iterable[str]) -> tuple[bytes, bytes]:
        """A certificate for the coordinator's machine, with these names and addresses, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_general(host) for host in sorted(set(hosts))]
        return self._certify(key.public_key(), names), _key_pem(key)

    def sign(self, request: str) -> bytes:
        """A worker's certificate for a signing request; raises UsageError where it is none.

        Whatever hosts the request names are left out: workers know each other by the run's token, and
        who could choose a name could stand in for the coordinator.
        """
        return self._certify(_elliptic(_read_request(request)), [x509.DNSName(WORKER_NAME)])

    def _certify(self, key: ec.EllipticCurvePublicKey, names: list[x509.GeneralName]) -> bytes:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer = self._certificate.subject
        builder = (
            _builder(
                _name("gangline"),
                issuer=issuer,
                public_key=key,
                now=datetime.datetime.now(datetime.UTC),
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


def request_certificate() -> tuple[bytes, bytes]:
    """A worker's signing request, and the key to it."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name("gangline"))
    request = builder.sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM), _key_pem(key)


def make_tls_files(run_dir: Path, *, run: str, hosts: Iterable[str]) -> TlsFiles:
    """An authority and a certificate for the run, in its folder."""
    authority = Authority.make(run)
    certificate, key = authority.issue(hosts)
    return write_tls_files(
        run_dir, certificate, key, authority=authority.pem, authority_key=authority.key_pem
    )


def write_tls_files(
    run_dir: Path,
    certificate: bytes,
    key: bytes,
    *,
    authority: bytes,
    authority_key: bytes | None = None,
) -> TlsFiles:
    """Puts certificates into a run folder; keys are readable by their owner only."""
    folder = (run_dir / _FOLDER).resolve()
    contents = {
        "authority.pem": authority,
        "certificate.pem": certificate,
        "key.pem": key,
        **({} if authority_key is None else {"authority-key.pem": authority_key}),
    }
    try:
        folder.mkdir(mode=0o700)
        for name, content in contents.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(folder / name, flags, 0o600), "wb") as file:
                file.write(content)
    except OSError as error:
        raise UsageError(
            f"cannot write the run's certificates to {folder}: {error.strerror}; remove that folder "
            "to have them made anew"
        ) from error
    files = TlsFiles(
        certificate=str(folder / "certificate.pem"),
        key=str(folder / "key.pem"),
        authority=str(folder / "authority.pem"),
        authority_key=None if authority_key is None else str(folder / "authority-key.pem"),
    )
    files.write(run_dir)
    return files


def own_hosts(*hosts: str) -> set[str]:
    """The names and addresses by which this machine is reached, and these."""
    addresses = {
        one.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for one in interface
        if one.family in (socket.AF_INET, socket.AF_INET6)
    }
    return {
        *hosts,
        *sorted(addresses)[:_MAX_ADDRESSES],
        "localhost",
        "127.0.0.1",
        socket.gethostname(),
    }


def _read_request(text: str) -> x509.CertificateSigningRequest:
    if len(text) > _MAX_REQUEST_CHARS:
        raise UsageError(f"a signing request has at most {_MAX_REQUEST_CHARS} characters")
    try:
        asked = x509.load_pem_x509_csr(text.encode())
        is_signed = asked.is_signature_valid
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"this is no certificate signing request in PEM: {error}") from error
    if not is_signed:
        raise UsageError("the signing request is not signed with the key that it is for")
    return asked


def _elliptic(asked: x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    try:
        key = asked.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"the signing request's key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UsageError("the signing request's key must be one of an elliptic curve")
    return key


def _builder(
    subject: x509.Name,
    *,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
