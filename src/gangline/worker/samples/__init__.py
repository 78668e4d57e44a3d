# SPDX-License-Identifier: Apache-2.0
"""Which samples this worker computes: the order, the hand-out, the loader."""
