# SPDX-License-Identifier: Apache-2.0
"""The flags of the engines, one file for each."""
