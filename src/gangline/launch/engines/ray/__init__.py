# SPDX-License-Identifier: Apache-2.0
"""Runs in a Ray cluster: by `gangline run --on ray`, and by a `GanglineTrainer`."""
