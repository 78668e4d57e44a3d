# SPDX-License-Identifier: Apache-2.0
"""Looks for known vulnerabilities in the pinned dependencies, and says so where nobody can be asked.

    python tools/audit.py .cache/audit/bin/pip-audit constraints.txt

Exit codes: 0, none is known; 1, some are (pip-audit lists them); 3, the service that knows them
cannot be asked, so that nothing was found out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

SERVICE = "https://pypi.org/pypi/{name}/{version}/json"
TIMEOUT_S = 20.0
FOUND, NOT_ASKED = 1, 3


def why_not(pin: str) -> str | None:
    """Why the service does not say what is known of a pinned package; None where it does."""
    name, _, version = pin.partition("==")
    url = SERVICE.format(name=name, version=version)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            document = json.load(answer)
    except (OSError, ValueError) as error:
        return f"{url}: {error}"
    if "vulnerabilities" not in document:
        return f"{url} says nothing about vulnerabilities"
    return None


def main(pip_audit: str, pins: str) -> int:
    """Asks, if there is somebody to ask."""
    lines = [line.strip() for line in Path(pins).read_text().splitlines()]
    packages = [line for line in lines if line and not line.startswith("#")]
    for pin in (packages[0], packages[-1]):
        reason = why_not(pin)
        if reason is not None:
            sys.stderr.write(
                f"the audit was not done: the list of known vulnerabilities cannot be asked\n"
                f"  {reason}\nrun it where pypi.org itself is reached, not a mirror of its files\n"
            )
            return NOT_ASKED
    command = [pip_audit, "--strict", "--disable-pip", "--no-deps", "-r", pins]
    return FOUND if subprocess.run(command, check=False).returncode else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
