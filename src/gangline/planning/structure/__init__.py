# SPDX-License-Identifier: Apache-2.0
"""Who takes part, in which groups, and how they exchange."""
