# SPDX-License-Identifier: Apache-2.0
"""`python -m gangline.engines.agent`, as a launcher runs it on a host, or an engine in each place."""

import argparse

from gangline.engines.agent.agent import main
from gangline.engines.agent.called import STDIN, call

parser = argparse.ArgumentParser(
    prog="python -m gangline.engines.agent",
    description="Runs workers for a launcher, which speaks to it over standard input and output.",
)
parser.add_argument(
    "--call",
    nargs="?",
    const=STDIN,
    metavar="FILE",
    help="call the launcher that a file invites to",
)
parser.add_argument("--name", help="with --call: what this place is called")
parser.add_argument(
    "--insist",
    action="store_true",
    help="with --call: fail where the launcher is gone before it has said that all is over",
)
given = parser.parse_args()
if given.call is None:
    main()
else:
    call(given.call, name=given.name, insists=given.insist)
