# SPDX-License-Identifier: Apache-2.0
"""`gangline.pipeline`: a model that is cut over the workers of a job, in stages."""
