# SPDX-License-Identifier: Apache-2.0
"""Measures what there is: machines, their speed, their memory, the links between them."""
