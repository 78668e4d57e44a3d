# SPDX-License-Identifier: Apache-2.0
"""Runs on Slurm: submitted from outside of a job; inside of one, its tasks are the workers."""

from gangline.launch.engines.slurm.engine import ENGINE as ENGINE
