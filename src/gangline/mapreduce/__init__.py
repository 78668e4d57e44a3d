# SPDX-License-Identifier: Apache-2.0
"""`gangline.map`, `imap` and `reduce`: loops over rows, on the threads or processes of this machine.

`api` are the calls, `arguments` what they take, `inputs` how arguments are cut into chunks, `work` the
user's function on one; `dispatch` hands the chunks out (as `gangline.scheduling` cuts them), `crew` and
`processes` are who does them, `sinks` and `combining` what becomes of the results, `result` what comes
back, and `progress` the bar.
"""
