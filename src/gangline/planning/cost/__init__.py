# SPDX-License-Identifier: Apache-2.0
"""What a step and an exchange cost on a cluster, as far as it was measured."""
