# SPDX-License-Identifier: Apache-2.0
"""Spark as an engine: its tasks hold the workers, and its DataFrames the samples."""
