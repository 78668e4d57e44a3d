# SPDX-License-Identifier: Apache-2.0
"""Who does which part of a loop: chunks of items, handed out on request from one queue or several.

    queues = WorkQueues(Choice.parse("AWF-C", layout="PERCPU"), total=10_000, workers=8)
    while (chunk := queues.take(worker)) is not None:
        ...                                     # the items chunk.start … chunk.stop − 1
        queues.finished(worker, chunk, seconds)

Pure: no clock, thread, file or global random numbers. Who shares a loop between threads or processes
brings the lock, the clock and the messages.
"""

from gangline.scheduling.choice import Choice as Choice
from gangline.scheduling.choice import Layout as Layout
from gangline.scheduling.chunks import Chunk as Chunk
from gangline.scheduling.chunks import Loop as Loop
from gangline.scheduling.chunks import Scheme as Scheme
from gangline.scheduling.partition import Partitioner as Partitioner
from gangline.scheduling.queues import WorkQueues as WorkQueues
from gangline.scheduling.schemes.parsing import SchemeSpec as SchemeSpec
from gangline.scheduling.schemes.parsing import parse_scheme as parse_scheme
from gangline.scheduling.speeds import Speeds as Speeds
from gangline.scheduling.timing import Timing as Timing
from gangline.scheduling.timing import TimingEstimate as TimingEstimate
from gangline.scheduling.victims import VictimRule as VictimRule
from gangline.scheduling.victims import parse_victims as parse_victims
