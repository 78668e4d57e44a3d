# SPDX-License-Identifier: Apache-2.0
"""A thousand random training loops, each in plain torch, by a job of one, and by several workers.

    python benchmarks/fuzz_loops.py [--loops 1000] [--first 0]

Prints how many agreed, how many were refused and by which error, and every failure as a program that
can be read and repeated (`python tests/scripts/loop_fuzzer.py --seed N --shrink`). Exits with 1 if
there was any.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "scripts"))

from loop_fuzzer import Tally, judge, warm_up
from loop_programs import draw

from gangline.testing import WorkerPool

LEAST_AGREED = 0.6
"""Programs that are refused say little: most must be such that can be compared."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loops", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first one")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
    tally, begin_s = Tally(), time.monotonic()
    with WorkerPool() as pool:
        warm_up(pool)
        for seed in range(options.first, options.first + options.loops):
            tally.add(seed, judge(draw(seed), pool))
            for failed, text in tally.failures[-1:]:
                if failed == seed:
                    print(f"\n{text}\n", flush=True)
    print_tally(tally, options.loops, time.monotonic() - begin_s)
    is_telling = tally.verdicts["agreed"] > LEAST_AGREED * options.loops
    sys.exit(bool(tally.failures) or not is_telling)


def print_tally(tally: Tally, loops: int, took_s: float) -> None:
    print(f"{loops} loops in {took_s:.0f} s")
    for kind in ("agreed", "refused", "invalid", "wrong"):
        print(f"{kind:>8} {tally.verdicts[kind]:5}")
    for reason, count in tally.refusals.most_common():
        print(f"{count:5} × {reason}")
    if tally.failures:
        print("seeds that failed:", ", ".join(str(seed) for seed, _ in tally.failures))


if __name__ == "__main__":
    main()
