# SPDX-License-Identifier: Apache-2.0
"""The coordinator: it gathers the workers, hears what steps cost, and publishes views.

It decides by `control.decide` alone and never touches a tensor. What is not in `server/` is told
everything, the time included, and answers with values: it may not import asyncio, socket, threading,
time, os, starlette or uvicorn, nor what is in `server/`.
"""

from gangline.coordinator.coordinator import Coordinator as Coordinator
from gangline.coordinator.federation import Federation as Federation
from gangline.coordinator.hub import Hub as Hub
