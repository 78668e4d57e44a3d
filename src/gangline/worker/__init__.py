# SPDX-License-Identifier: Apache-2.0
"""The real run: what happens inside the user's training process."""
