# SPDX-License-Identifier: Apache-2.0
"""Simulated workers, the groups that they make, and their lines to the coordinator of a real run."""
