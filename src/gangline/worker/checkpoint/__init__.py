# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what is in them, how they are written, how a job goes on from one."""
