# SPDX-License-Identifier: Apache-2.0
"""Agents that an engine of somebody else's starts, and that call the launcher."""
