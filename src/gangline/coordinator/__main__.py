# SPDX-License-Identifier: Apache-2.0
"""`python -m gangline.coordinator`: the coordinator of the run in a folder, as a launcher starts it."""

from gangline.coordinator.server.process import main

main()
