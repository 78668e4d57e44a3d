# SPDX-License-Identifier: Apache-2.0
"""What is noticed of a loop that would train wrongly."""
