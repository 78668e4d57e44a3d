# SPDX-License-Identifier: Apache-2.0
"""How a machine enters a job that runs elsewhere: invited, checked, with the code brought to it."""
