# SPDX-License-Identifier: Apache-2.0
"""The data plane of parameter servers: shards, what is said to them, and who serves them."""
