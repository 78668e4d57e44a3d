# SPDX-License-Identifier: Apache-2.0
"""MPI's launchers: which one there is, and how it is called."""
