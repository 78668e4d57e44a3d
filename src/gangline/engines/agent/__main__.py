# SPDX-License-Identifier: Apache-2.0
"""`python -m gangline.engines.agent`, as a launcher runs it on a host; it speaks JSON."""

from gangline.engines.agent.agent import main

main()
