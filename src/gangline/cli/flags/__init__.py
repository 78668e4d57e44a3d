# SPDX-License-Identifier: Apache-2.0
"""Flags that several verbs share."""
