# SPDX-License-Identifier: Apache-2.0
"""`gangline.paramserv`: a parameter server as one call, with threads or processes as its workers.

`api` is the call, `arguments` what it takes, `rows` and `leaves` the data and the model, `ledger` who
computes which rows, `server` the model and its clocks, `computing` what a worker does, `crew` and
`processes` who does it, `result` what comes back, and `cuts` what is kept in a file meanwhile.
"""
