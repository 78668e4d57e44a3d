# SPDX-License-Identifier: Apache-2.0
"""Workers in actors of a Ray cluster. The public names are in `gangline.ray`."""
