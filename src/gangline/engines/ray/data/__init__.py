# SPDX-License-Identifier: Apache-2.0
"""Ray data sets as a source of samples: rows by their numbers, computed as they are needed."""
