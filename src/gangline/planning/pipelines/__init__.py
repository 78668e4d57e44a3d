# SPDX-License-Identifier: Apache-2.0
"""Pipelines over unlike machines: where a model is cut, in which order stages work, what that costs."""
