# SPDX-License-Identifier: Apache-2.0
"""What only the pods of a job may know, in one Secret: the token, and a certificate for all of them."""

from __future__ import annotations

import msgspec

from gangline.files.certificates import Authority
from gangline.files.tokens import make_token
from gangline.protocol.pods import AUTHORITY, CERTIFICATE, KEY, TOKEN


class JobSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the Secret, as text. Made anew each time that manifests are written."""

    token: str
    certificate: str
    key: str
    authority: str

    @classmethod
    def make(cls, run: str, names: tuple[str, ...]) -> JobSecrets:
        """A token, and a certificate for these names by an authority that is forgotten at once."""
        authority = Authority.make(run)
        certificate, key = authority.issue(names)
        return cls(
            token=make_token(),
            certificate=certificate.decode(),
            key=key.decode(),
            authority=authority.pem.decode(),
        )

    @property
    def files(self) -> dict[str, str]:
        """By their names in the mounted folder."""
        return {
            TOKEN: self.token,
            CERTIFICATE: self.certificate,
            KEY: self.key,
            AUTHORITY: self.authority,
        }
