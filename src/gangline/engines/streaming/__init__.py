# SPDX-License-Identifier: Apache-2.0
"""Sends the event logs of this machine's workers to where their job was started."""
