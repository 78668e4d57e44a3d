# SPDX-License-Identifier: Apache-2.0
"""Exchanges between hosts: links over TCP, and the ring on them."""
