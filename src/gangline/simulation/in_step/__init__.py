# SPDX-License-Identifier: Apache-2.0
"""Simulated workers that make every step together."""
