# SPDX-License-Identifier: Apache-2.0
"""What calls that compute on this machine share: rows of the user's data, and processes that read them.

`table` takes rows of arrays, sparse matrices and data frames; `mapped_file` is an object in a file
whose arrays all processes map; `child` is a process that is asked over a pipe, and may be lost;
`answers` is how it says what a function returned or raised.
"""
