# SPDX-License-Identifier: Apache-2.0
"""Groups at their own pace, as the coordinator sees them."""
