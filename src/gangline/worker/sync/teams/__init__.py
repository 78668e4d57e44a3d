# SPDX-License-Identifier: Apache-2.0
"""A worker in a group at its own pace: the team's samples, and its merges."""
