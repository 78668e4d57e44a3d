# SPDX-License-Identifier: Apache-2.0
"""How large the next chunk is: the schemes, by their names."""
