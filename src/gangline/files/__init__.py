# SPDX-License-Identifier: Apache-2.0
"""The files that the processes of a run share: tokens, certificates, where the coordinator is."""
