# SPDX-License-Identifier: Apache-2.0
"""Who takes part: who joins, who leaves, who is lost."""
