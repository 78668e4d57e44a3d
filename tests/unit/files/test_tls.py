# SPDX-License-Identifier: Apache-2.0
"""Certificates: made, used by both ends, and refused with a reason."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from serving import KEYS, ask, hello, open_line, serving, until

from gangline.cli.cmd_up import join_command
from gangline.cli.flags.tls_options import TlsFlags, enrol
from gangline.cli.main import run_command
from gangline.files import certificates
from gangline.files.announcement import Announcement
from gangline.files.certificates import Authority, make_tls_files, request_certificate
from gangline.files.tls import TlsFiles, client_context, read_tls_files, server_context, server_tls
from gangline.launch.certificates import own_files
from gangline.launch.joining.contact import Contact
from gangline.protocol.messages import Hello, decode_from_worker
from gangline.spec.config import ExchangeConfig, RunConfig, TlsConfig
from gangline.spec.errors import LaunchError, UsageError
from gangline.worker.line.client import ControlClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.coordinator.server import CoordinatorServer

HOSTS = ("127.0.0.1",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def files(folder: Path) -> TlsFiles:
    return make_tls_files(folder, run="test", hosts=HOSTS)


@pytest.fixture(scope="module")
def server(files: TlsFiles) -> Iterator[CoordinatorServer]:
    with serving(tls=server_tls(files)) as made:
        yield made


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(KEYS.worker)
    path.chmod(0o600)
    return path


def test_keys_are_readable_by_their_owner_only(folder: Path, files: TlsFiles) -> None:
    assert read_tls_files(folder) == files
    assert stat.S_IMODE((folder / "tls").stat().st_mode) == 0o700
    for path in (files.key, files.authority_key):
        assert stat.S_IMODE(Path(str(path)).stat().st_mode) == 0o600


def test_people_and_workers_talk_over_tls(server: CoordinatorServer, files: TlsFiles) -> None:
    context = client_context(files.authority)
    assert server.url.startswith("wss://127.0.0.1:")
    assert ask(server, "/api/status", KEYS.observer, verify=context).status_code == 200
    with open_line(server, ssl=context) as line:
        line.send(hello())
        assert line.response is not None


def test_a_worker_connects_with_the_authority_of_its_run(
    server: CoordinatorServer, files: TlsFiles
) -> None:
    client = _client(server.url, files.authority, worker=5)
    try:
        until(lambda: _knows(server, files, 5), "the worker to be known")
    finally:
        client.close()


def test_a_worker_refuses_a_coordinator_that_nobody_vouches_for(
    server: CoordinatorServer, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(Authority.make("another").pem)
    client = _client(server.url, str(other), worker=6)
    try:
        with pytest.raises(LaunchError, match="does not vouch for the coordinator"):
            client.wait_gathered(20.0)
    finally:
        client.close()


def test_the_command_line_refuses_a_coordinator_that_nobody_vouches_for(
    server: CoordinatorServer, token_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(Authority.make("another").pem)
    contact = Contact(url=server.url, token_file=token_file, authority=other)
    with pytest.raises(LaunchError, match=r"other\.pem does not vouch for the coordinator at wss:"):
        contact.ask("/api/status")


def test_a_certificate_for_another_address_is_refused(token_file: Path, tmp_path: Path) -> None:
    made = make_tls_files(tmp_path, run="test", hosts=["203.0.113.7"])
    with serving(tls=server_tls(made)) as elsewhere:
        contact = Contact(url=elsewhere.url, token_file=token_file, authority=Path(made.authority))
        with pytest.raises(LaunchError, match="is for another address"):
            contact.ask("/api/status")


def test_an_expired_certificate_is_refused(
    token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.make("test")
    monkeypatch.setattr(certificates, "VALID", -datetime.timedelta(minutes=1))
    certificate, key = authority.issue(HOSTS)
    made = certificates.write_tls_files(tmp_path, certificate, key, authority=authority.pem)
    with serving(tls=server_tls(made)) as server:
        contact = Contact(url=server.url, token_file=token_file, authority=Path(made.authority))
        with pytest.raises(
            LaunchError, match=r"not valid at this time \(certificate has expired\)"
        ):
            contact.ask("/api/status")


def test_a_client_without_tls_is_told_what_is_missing(
    server: CoordinatorServer, token_file: Path
) -> None:
    contact = Contact(url=server.url.replace("wss", "ws"), token_file=token_file)
    with pytest.raises(LaunchError, match="one with TLS needs --tls-ca"):
        contact.ask("/api/status")


def test_a_run_folder_says_how_its_coordinator_is_verified(
    server: CoordinatorServer, files: TlsFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(tmp_path)
    Announcement(run="test", url=server.url, pid=1).write(tmp_path)
    (tmp_path / "observer-token").write_text(KEYS.observer)
    (tmp_path / "observer-token").chmod(0o600)
    assert run_command(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "test"


# --- who joins ---------------------------------------------------------------------------------------


def test_who_joins_gets_a_certificate_that_the_others_accept(
    server: CoordinatorServer, files: TlsFiles, token_file: Path, tmp_path: Path
) -> None:
    contact = Contact(url=server.url, token_file=token_file, authority=Path(files.authority))
    own = enrol(contact, tmp_path)
    assert own.authority_key is None, "who joins cannot vouch for others"
    accepting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.authority)
    accepting.verify_mode = ssl.CERT_REQUIRED
    accepting.load_cert_chain(files.certificate, files.key)
    connecting = ssl.create_default_context(cafile=own.authority)
    connecting.load_cert_chain(own.certificate, own.key)
    _shake(accepting, connecting, name="127.0.0.1")


def test_a_workers_certificate_does_not_make_it_the_coordinator(
    server: CoordinatorServer, files: TlsFiles, tmp_path: Path
) -> None:
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "localhost")])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    answer = ask(
        server,
        "/api/certificate",
        KEYS.worker,
        content=msgspec.json.encode({"request": request.decode()}),
        verify=client_context(files.authority),
    )
    own = tmp_path / "own.pem"
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    own.write_bytes(answer.json()["certificate"].encode() + key_pem)
    standing_in = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    standing_in.load_cert_chain(own)
    for name in ("localhost", "127.0.0.1", "gangline"):
        with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
            _shake(standing_in, client_context(files.authority), name=name)


@pytest.mark.parametrize("request_text", ["", "x", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"])
def test_what_is_no_signing_request_is_refused(
    server: CoordinatorServer, files: TlsFiles, request_text: str
) -> None:
    answer = ask(
        server,
        "/api/certificate",
        KEYS.worker,
        content=msgspec.json.encode({"request": request_text}),
        verify=client_context(files.authority),
    )
    assert answer.status_code == 400
    assert "no certificate signing request" in answer.text


def test_a_run_with_certificates_of_the_user_signs_none(files: TlsFiles) -> None:
    foreign = msgspec.structs.replace(files, authority_key=None)
    request, _ = request_certificate()
    with serving(tls=server_tls(foreign)) as server:
        answer = ask(
            server,
            "/api/certificate",
            KEYS.worker,
            content=msgspec.json.encode({"request": request.decode()}),
            verify=client_context(files.authority),
        )
    assert answer.status_code == 409
    assert "--tls-cert" in answer.text


# --- flags -------------------------------------------------------------------------------------------


def test_flags_make_certificates_once(tmp_path: Path) -> None:
    assert TlsFlags().resolve(tmp_path, run="r", host="127.0.0.1") is None
    made = TlsFlags(tls=True).resolve(tmp_path, run="r", host="127.0.0.1")
    assert made is not None
    assert TlsFlags().resolve(tmp_path, run="r", host="127.0.0.1") == made, "after a restart"


def test_one_file_is_not_enough(files: TlsFiles) -> None:
    with pytest.raises(UsageError, match="three files: --tls-cert, --tls-key and --tls-ca"):
        own_files(Path(files.certificate), None, None)
    with pytest.raises(UsageError, match="there is no file nowhere"):
        own_files(Path("nowhere"), Path(files.key), Path(files.authority))


def test_a_key_of_another_certificate_is_refused(files: TlsFiles) -> None:
    mixed = msgspec.structs.replace(files, key=str(files.authority_key))
    with pytest.raises(UsageError, match="cannot be used with the key"):
        server_context(mixed)


def test_tls_and_a_transport_in_the_clear_do_not_go_together() -> None:
    with pytest.raises(UsageError, match="gloo does not encrypt"):
        RunConfig(tls=TlsConfig(enabled=True), exchange=ExchangeConfig(transport="gloo")).check()


def test_a_tls_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tls.json").write_text('{"certificate": 3}')
    with pytest.raises(UsageError, match="does not name the run's certificates"):
        read_tls_files(tmp_path)


def test_the_join_command_names_the_authority(files: TlsFiles) -> None:
    command = join_command("wss://10.0.0.5:7700", token_file=Path("token"), tls=files)
    assert command.startswith("gangline join 10.0.0.5:7700 --token-file token --tls-ca ")


# --- helpers -----------------------------------------------------------------------------------------


def _client(url: str, authority: str, *, worker: int) -> ControlClient:
    said: Any = decode_from_worker(hello(worker))
    assert isinstance(said, Hello)
    return ControlClient(
        lambda: url,
        token=KEYS.worker,
        hello=said,
        break_off=lambda *group: None,
        authority=authority,
    )


def _knows(server: CoordinatorServer, files: TlsFiles, worker: int) -> bool:
    context = client_context(files.authority)
    status = ask(server, "/api/status", KEYS.observer, verify=context).json()
    return any(one["worker"] == worker for one in status["workers"])


def _shake(accepting: ssl.SSLContext, connecting: ssl.SSLContext, *, name: str) -> None:
    """A hand-shake in memory; raises where one side does not accept the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = accepting.wrap_bio(to_server, to_client, server_side=True)
    client = connecting.wrap_bio(to_client, to_server, server_hostname=name)
    waiting = {client, server}
    for _ in range(10):
        for side in (client, server):
            if side not in waiting:
                continue
            try:
                side.do_handshake()
                waiting.discard(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
