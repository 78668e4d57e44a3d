# SPDX-License-Identifier: Apache-2.0
"""The command `gangline`: one file per verb, each parses, calls a library function, and prints."""
