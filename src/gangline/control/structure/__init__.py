# SPDX-License-Identifier: Apache-2.0
"""How the members exchange, and when that changes."""
