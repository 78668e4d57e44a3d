# SPDX-License-Identifier: Apache-2.0
"""The structure in which a running job exchanges: its links are measured, and it is planned anew."""
