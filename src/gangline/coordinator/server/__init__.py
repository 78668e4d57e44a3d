# SPDX-License-Identifier: Apache-2.0
"""The coordinator's side that touches the world: its port, its roles, its journal on the disk."""

from gangline.coordinator.server.access import Keys as Keys
from gangline.coordinator.server.assembly import Post as Post
from gangline.coordinator.server.assembly import assemble as assemble
from gangline.coordinator.server.driver import Driver as Driver
from gangline.coordinator.server.serve import CoordinatorServer as CoordinatorServer
