# SPDX-License-Identifier: Apache-2.0
"""The coordinator: it gathers the workers, hears what steps cost, and publishes views.

It decides by `control.decide` alone and never touches a tensor.
"""

from gangline.runtime.coordinator.access import Keys as Keys
from gangline.runtime.coordinator.driver import Driver as Driver
from gangline.runtime.coordinator.federation import Federation as Federation
from gangline.runtime.coordinator.hub import Hub as Hub
from gangline.runtime.coordinator.server import CoordinatorServer as CoordinatorServer
