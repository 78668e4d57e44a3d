# SPDX-License-Identifier: Apache-2.0
"""What `prepare` does: sorts, refuses, compares with the others, sets up."""
