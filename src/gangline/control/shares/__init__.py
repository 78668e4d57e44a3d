# SPDX-License-Identifier: Apache-2.0
"""How fast the members are, and how much of the batch each gets."""
