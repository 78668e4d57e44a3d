# SPDX-License-Identifier: Apache-2.0
"""Who starts the worker processes, watches them, and ends them."""

from gangline.engines.job import Job as Job
from gangline.engines.local import LocalEngine as LocalEngine
from gangline.engines.result import JobResult as JobResult
from gangline.engines.result import WorkerResult as WorkerResult
from gangline.engines.running import run_job as run_job
