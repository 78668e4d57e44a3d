# SPDX-License-Identifier: Apache-2.0
"""The group that this worker is in: entering, leaving, losing it, becoming alike in a new one."""
