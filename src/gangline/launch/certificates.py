# SPDX-License-Identifier: Apache-2.0
"""Where a run's certificates come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gangline.files.tls import TlsFiles, read_tls_files, server_context
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.spec.config import RunConfig


def find_tls_files(
    run_dir: Path, *, own: TlsFiles | None, makes: bool, run: str, hosts: Iterable[str]
) -> TlsFiles | None:
    """The user's own, the folder's, or, where they are to be made, new ones; None without TLS."""
    if own is not None:
        own.write(run_dir)
        return own
    found = read_tls_files(run_dir)
    if found is not None or not makes:
        return found
    from gangline.files.certificates import make_tls_files, own_hosts

    return make_tls_files(run_dir, run=run, hosts=own_hosts(*hosts))


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


def own_files_of(config: RunConfig) -> TlsFiles | None:
    """The user's own certificate, if the configuration names one."""
    wire = config.wire
    if wire.certificate is None or wire.key is None or wire.authority is None:
        return None  # it names all three, or none
    return own_files(Path(wire.certificate), Path(wire.key), Path(wire.authority))
