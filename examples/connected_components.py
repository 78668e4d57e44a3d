# SPDX-License-Identifier: Apache-2.0
"""Finds the connected components of a graph: in each round a node takes its neighbours' largest label.

python examples/connected_components.py                     # a made-up graph
python examples/connected_components.py edges.txt GSS       # two node numbers in a line; a scheme
"""

import sys

import numpy as np

import gangline


def spread(own: np.ndarray, begins: np.ndarray, ends: np.ndarray, near: np.ndarray, labels):
    """The largest label of each node of a chunk and of its neighbours `near[begin:end]`."""
    found = own.copy()
    has_some = ends > begins
    if has_some.any():
        chunk = labels[near[begins[0] : ends[-1]]]
        largest = np.maximum.reduceat(chunk, (begins - begins[0])[has_some])
        found[has_some] = np.maximum(found[has_some], largest)
    return found


def main() -> None:
    scheme = sys.argv[2] if len(sys.argv) > 2 else "FAC2"
    rng = np.random.default_rng(0)
    edges = np.loadtxt(sys.argv[1]) if len(sys.argv) > 1 else rng.integers(0, 10_000, (8_000, 2))

    _, edges = np.unique(edges, return_inverse=True)  # node numbers without gaps
    edges = edges.reshape(-1, 2)
    both = np.concatenate([edges, edges[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    nodes, near = int(both.max()) + 1, both[:, 1]
    borders = np.searchsorted(both[:, 0], np.arange(nodes + 1))

    labels, rounds, has_changed = np.arange(nodes), 0, True
    while has_changed:
        # The first three have a row for each node, and are cut; every chunk needs the last two whole.
        given = (labels, borders[:-1], borders[1:], near, labels)
        new = gangline.map(spread, *given, broadcast=(3, 4), scheme=scheme)
        has_changed = not np.array_equal(new, labels)
        labels, rounds = new, rounds + 1
    sizes = np.unique(labels, return_counts=True)[1]
    print(f"{nodes} nodes, {len(sizes)} components, the largest of {sizes.max()}, {rounds} rounds")


if __name__ == "__main__":
    main()
