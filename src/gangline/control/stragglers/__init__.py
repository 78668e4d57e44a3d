# SPDX-License-Identifier: Apache-2.0
"""What is done about members that slow the others down."""
