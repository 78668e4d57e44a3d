# SPDX-License-Identifier: Apache-2.0
"""Picks scheme, grain, layout and victims by itself, by what was measured.

selector = Selector(workers=8, groups=[0, 0, 0, 0, 1, 1, 1, 1])
for total in loops:
    queues = selector.begin(total)          # take, finished and put_back as of WorkQueues
    ...
    selector.end(queues)
    for decision in selector.decided():     # what, why, and the numbers: for the events
        ...
"""

from gangline.scheduling.selection.advice import Advice as Advice
from gangline.scheduling.selection.selector import METHODS as METHODS
from gangline.scheduling.selection.selector import Selector as Selector
from gangline.scheduling.selection.tuned import TunedQueues as TunedQueues
