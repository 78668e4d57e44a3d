# SPDX-License-Identifier: Apache-2.0
"""The nouns of exchanges: who is reached where, in which structure, how compressed."""
