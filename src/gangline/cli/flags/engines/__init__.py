# SPDX-License-Identifier: Apache-2.0
"""The flags of each engine, in a group of its own."""
