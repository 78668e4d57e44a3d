# SPDX-License-Identifier: Apache-2.0
"""The line to the coordinator, and what goes on beside it."""
