# SPDX-License-Identifier: Apache-2.0
"""One model over many workers: its activations are cut into tiles by space, channels or batch.

`geometry` and `grid` say who has what (pure), `layers/` what each layer needs and how it is computed,
`plan` who computes and fetches what, `exchange` how tiles talk, `model` runs it, `api` is the call.
"""
