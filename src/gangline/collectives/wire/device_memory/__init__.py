# SPDX-License-Identifier: Apache-2.0
"""The way over the memory of a GPU, for members on one host that compute on the same one."""
