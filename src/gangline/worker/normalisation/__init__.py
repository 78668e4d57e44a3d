# SPDX-License-Identifier: Apache-2.0
"""Layers that normalise by their batch, which lies on several workers."""
