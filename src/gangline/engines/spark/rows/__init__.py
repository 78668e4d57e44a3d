# SPDX-License-Identifier: Apache-2.0
"""The rows of a DataFrame as samples: written once as Arrow files, found by their numbers."""
