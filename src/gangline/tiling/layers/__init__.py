# SPDX-License-Identifier: Apache-2.0
"""The layers that can be tiled: what each needs for a part of its output, and how that is computed."""
