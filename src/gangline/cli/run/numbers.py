# SPDX-License-Identifier: Apache-2.0
"""Lists of numbers on the command line."""

from __future__ import annotations

import math

from gangline.spec.errors import UsageError


def parse_numbers(text: str, *, flag: str) -> list[float]:
    """The numbers of a list such as `1,0.5,0.2`."""
    numbers = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UsageError(
                f"{flag} {text}: {part.strip()!r} is not a number; "
                f"write numbers with commas between them, such as {flag} 1,0.5,0.2"
            )
        numbers.append(number)
    return numbers
