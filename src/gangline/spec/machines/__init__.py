# SPDX-License-Identifier: Apache-2.0
"""Other machines: what they are called, run, bring and compare, and how they say that they end."""
