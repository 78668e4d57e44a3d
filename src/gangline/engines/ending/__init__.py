# SPDX-License-Identifier: Apache-2.0
"""How a job ends: by itself, with its machine, or because of a worker."""
