# SPDX-License-Identifier: Apache-2.0
"""What all workers do together outside of steps: means, sums, turns, files."""
