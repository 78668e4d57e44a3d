# SPDX-License-Identifier: Apache-2.0
"""Keeps the event logs that other machines send."""
