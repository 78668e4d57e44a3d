# SPDX-License-Identifier: Apache-2.0
"""Decisions before the run, as pure functions: numbers in, numbers out.

No clock, environment, file, thread, logger or global random: what varies is an argument.
"""
