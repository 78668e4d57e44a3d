# SPDX-License-Identifier: Apache-2.0
"""What was published, as written, to compare with."""
