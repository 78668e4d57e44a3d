# SPDX-License-Identifier: Apache-2.0
"""k-means: in every round, chunks of points add up who is nearest to which centre.

python examples/kmeans.py
python examples/kmeans.py points.csv 5          # a file, and how many clusters
"""

import sys

import numpy as np

import gangline


def add_up(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Of each centre, over the points that are nearest to it: their sum, and how many they are."""
    distances = ((points[:, None, :] - centres) ** 2).sum(axis=2)
    nearest = distances.argmin(axis=1)
    sums = np.zeros((len(centres), points.shape[1] + 1))
    np.add.at(sums, nearest, np.column_stack([points, np.ones(len(points))]))
    return sums


def main() -> None:
    clusters = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    rng = np.random.default_rng(0)
    middles = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0]])
    made_up = np.concatenate([middle + rng.standard_normal((3000, 2)) for middle in middles])
    points = np.loadtxt(sys.argv[1], delimiter=",") if len(sys.argv) > 1 else made_up

    centres = points[:: len(points) // clusters][:clusters]
    for _ in range(100):
        sums = gangline.reduce(add_up, points, centres, broadcast=(1,), scheme="GSS", grain=256)
        counts = sums[:, -1:]
        moved = np.where(counts > 0, sums[:, :-1] / np.maximum(counts, 1), centres)
        if np.allclose(moved, centres):
            break
        centres = moved
    print(f"{len(points)} points")
    for centre, count in zip(centres, sums[:, -1], strict=True):
        print(f"{int(count):6} points around", " ".join(f"{value:.2f}" for value in centre))


if __name__ == "__main__":
    main()
