# SPDX-License-Identifier: Apache-2.0
"""Exchanges within a host: memory that its members share."""
