# SPDX-License-Identifier: Apache-2.0
"""Loops over the nodes of a job: `where="job"`. Every worker of the job makes the same call.

`naming` says which function is meant, `listing` what each node has done, `handout` who does which
rows, `pulling` how a node asks for them, `sending` how results travel, and `run` is the whole loop.
Nothing that comes from another node is unpickled, and no code is sent: each node has the function.
"""
