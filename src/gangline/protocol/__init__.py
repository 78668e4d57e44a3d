# SPDX-License-Identifier: Apache-2.0
"""What is said between processes: workers, coordinator, launcher, people over HTTP."""
