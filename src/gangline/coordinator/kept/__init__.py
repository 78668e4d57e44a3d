# SPDX-License-Identifier: Apache-2.0
"""What outlives a coordinator: its journal, which it goes on from, and what is recorded for replay."""
