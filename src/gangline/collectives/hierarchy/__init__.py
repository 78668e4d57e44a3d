# SPDX-License-Identifier: Apache-2.0
"""A tree of groups that behaves like one: inside the groups, across their leaders, and back.

group = connect_tree(
    key, structure=structure, rank=rank, addresses=addresses, connector=connector
)
group.all_reduce(tensor, header)
"""

from gangline.collectives.hierarchy.connecting import Connector as Connector
from gangline.collectives.hierarchy.connecting import connect_tree as connect_tree
from gangline.collectives.hierarchy.group import TreeGroup as TreeGroup
