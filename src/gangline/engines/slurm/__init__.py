# SPDX-License-Identifier: Apache-2.0
"""Slurm: its commands, the allocation that this process is in, and the script of a batch job."""
