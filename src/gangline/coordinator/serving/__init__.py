# SPDX-License-Identifier: Apache-2.0
"""Parameter servers, as the coordinator sees them: who holds what, and the order of the updates."""
