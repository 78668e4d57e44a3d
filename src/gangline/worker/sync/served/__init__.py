# SPDX-License-Identifier: Apache-2.0
"""Updates that parameter servers make: a worker's part in it."""
