# SPDX-License-Identifier: Apache-2.0
"""A run while it goes on: follows its logs, and knows how it stands."""
