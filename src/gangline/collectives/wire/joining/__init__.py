# SPDX-License-Identifier: Apache-2.0
"""How members find each other and prove who they are, before anything is exchanged."""
