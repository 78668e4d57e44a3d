# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradients: their layout, the backward pass, the header."""
