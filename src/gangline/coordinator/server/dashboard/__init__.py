# SPDX-License-Identifier: Apache-2.0
"""The live view of a job: a page behind a login, a stream of what happens, and buttons."""

from gangline.coordinator.server.dashboard.board import Dashboard as Dashboard
