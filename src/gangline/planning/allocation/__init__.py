# SPDX-License-Identifier: Apache-2.0
"""How a global batch is cut into shares."""
