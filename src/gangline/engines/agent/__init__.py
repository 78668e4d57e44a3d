# SPDX-License-Identifier: Apache-2.0
"""What a launcher starts on a host through ssh: it runs workers there, and ends with its line."""
