# SPDX-License-Identifier: Apache-2.0
"""How workers are held together: a strategy that the loop asks, one for every way."""
