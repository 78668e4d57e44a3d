# SPDX-License-Identifier: Apache-2.0
"""Simulated groups that train at their own pace."""
