# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of several (virtual) nodes in a process of its own, led by lines on standard input.

`add N` adds a node with N CPUs and answers with its id, `remove ID` ends one as a crash would, and the
end of the input ends the cluster. The first line that is written is its address.
"""

import os
import sys

import ray
from ray.cluster_utils import Cluster

STORE_BYTES = 100_000_000


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray and its parts write what they like
    os.makedirs("/tmp/ray", exist_ok=True)  # where it notes the address of the newest cluster
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": int(sys.argv[1]),
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "node_ip_address": "127.0.0.1",
        },
    )
    nodes = {}
    try:
        print(cluster.address, file=out, flush=True)
        for line in sys.stdin:
            verb, word = line.split()
            if verb == "add":
                node = cluster.add_node(
                    num_cpus=int(word),
                    object_store_memory=STORE_BYTES,
                    node_ip_address="127.0.0.1",
                )
                nodes[node.node_id] = node
                print(node.node_id, file=out, flush=True)
            else:
                cluster.remove_node(nodes.pop(word), allow_graceful=False)
                print("removed", file=out, flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
