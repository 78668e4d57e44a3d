# SPDX-License-Identifier: Apache-2.0
"""The MPI transport: the collectives of an MPI library behind our protocol."""
