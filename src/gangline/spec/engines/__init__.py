# SPDX-License-Identifier: Apache-2.0
"""What can be asked of an engine: who starts the workers of a run, and with which options."""
