# SPDX-License-Identifier: Apache-2.0
"""Follows the user's loop: batches, backward passes, optimizer steps, epochs, calls between them."""
