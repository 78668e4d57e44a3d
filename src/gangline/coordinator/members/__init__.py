# SPDX-License-Identifier: Apache-2.0
"""The coordinator's workers: who said hello, who is lost, who comes back."""
