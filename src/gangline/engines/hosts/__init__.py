# SPDX-License-Identifier: Apache-2.0
"""Workers on other machines, which are started through the system's ssh."""
