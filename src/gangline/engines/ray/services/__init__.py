# SPDX-License-Identifier: Apache-2.0
"""How a worker, which is no process of Ray's, asks its actor for rows, and gives it its reports."""
