# SPDX-License-Identifier: Apache-2.0
"""Tiles of one image on two workers, of which one is three times slower: even against uneven tiles.

The uncut model runs on the fast worker alone. Memory is what each worker keeps for the backward pass.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from gangline.testing import WorkerPool
from harness import compare, save
from tiling_worker import train

SLOWNESS = [1.0, 3.0]
CONTENDERS: dict[str, tuple[Any, int]] = {
    "uncut, on the fast worker": ({2: 1}, 1),
    "even tiles": ({2: [1, 1]}, 2),
    "uneven tiles, 3 to 1": ({2: [3, 1]}, 2),
}
BASELINE = "even tiles"


def main() -> None:
    """Prints times with their ratios, and the memory of each worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512, help="height and width of the image")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5, help="steps of each measurement")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="a small image, 2 repeats")
    options = parser.parse_args()
    size, repeats = (96, 2) if options.quick else (options.size, options.repeats)
    memory: dict[str, list[int]] = {}
    with WorkerPool() as pool:

        def measure(name: str) -> float:
            dims, workers = CONTENDERS[name]
            arguments = (dims, size, options.channels, options.steps, SLOWNESS)
            found = pool.run(train, workers, args=arguments, deadline_s=600)
            memory[name] = [kept for _, kept in found]
            return max(seconds for seconds, _ in found)

        comparison = compare(
            {name: partial(measure, name) for name in CONTENDERS},
            baseline=BASELINE,
            repeats=repeats,
        )
    print(save("tiling", {f"one image of {size} x {size}, slowness 1 and 3": comparison}))
    print("\nKept for the backward pass, per worker:\n")
    for name, kept in memory.items():
        print(f"- {name}: {', '.join(f'{one / 2**20:.1f} MiB' for one in kept)}")


if __name__ == "__main__":
    main()
