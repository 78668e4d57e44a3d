# SPDX-License-Identifier: Apache-2.0
"""What workers tell of their steps, checkpoints and ends."""
