# SPDX-License-Identifier: Apache-2.0
"""Who started this process: a list of recognisers, each of which knows one launcher by its variables.

The first that recognises the environment says which worker of how many this is, and where the
coordinator is. A launcher is recognised before those that it may have been started by.
"""
