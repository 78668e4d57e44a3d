# SPDX-License-Identifier: Apache-2.0
"""`gangline.map`, `imap` and `reduce`: loops over rows, on the threads or processes of this machine.

`api` are the calls, `arguments` what they take, `inputs` how arguments are cut into chunks, `work` the
user's function on one. `selecting` finds the queues, `dispatch` hands out their chunks, `crew` and
`processes` are who does them, and `loop` puts these together. `sinks` and `combining` say what becomes
of the results, `result` is what comes back, and `progress` the bar. `algorithms` has examples of such
loops, for `gangline apply`.
"""
