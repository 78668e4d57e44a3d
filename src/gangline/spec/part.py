# SPDX-License-Identifier: Apache-2.0
"""What all parts of a run's configuration are."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some options of a run that belong together."""
