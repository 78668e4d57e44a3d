# SPDX-License-Identifier: Apache-2.0
"""Groups at their own pace: their samples, their merges, and when they part."""
