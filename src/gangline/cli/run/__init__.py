# SPDX-License-Identifier: Apache-2.0
"""The verbs that start workers, `run` and `join`."""
