# SPDX-License-Identifier: Apache-2.0
"""What moves gradients between workers: groups of members, behind one small protocol."""

from gangline.collectives.protocol import Group as Group
from gangline.collectives.protocol import GroupKey as GroupKey
from gangline.collectives.protocol import Header as Header
from gangline.collectives.protocol import all_reduce_unit as all_reduce_unit
from gangline.collectives.protocol import bring as bring
from gangline.collectives.protocol import gather_bytes as gather_bytes
from gangline.collectives.protocol import meet as meet
from gangline.collectives.protocol import take_verdicts as take_verdicts
from gangline.collectives.solo import OutsiderGroup as OutsiderGroup
from gangline.collectives.solo import SoloGroup as SoloGroup
