# SPDX-License-Identifier: Apache-2.0
"""Which gangline this is."""

VERSION = "0.1.0"
