# SPDX-License-Identifier: Apache-2.0
"""The flags of engines, one module for each."""
