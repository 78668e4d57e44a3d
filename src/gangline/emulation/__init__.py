# SPDX-License-Identifier: Apache-2.0
"""Makes an uneven cluster out of one machine."""

from gangline.emulation.scaling import scale_speeds as scale_speeds
