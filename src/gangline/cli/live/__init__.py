# SPDX-License-Identifier: Apache-2.0
"""The verbs that change or ask a running job."""
