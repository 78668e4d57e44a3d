# SPDX-License-Identifier: Apache-2.0
"""What a worker tells of its steps: to its event log, and to the coordinator."""
