# SPDX-License-Identifier: Apache-2.0
"""Adds two matrices, chunk by chunk, with every scheme there is, and says how the work was spread.

python examples/matrix_addition.py
python examples/matrix_addition.py 20000 500        # rows, columns
"""

import sys

import numpy as np

import gangline

SCHEMES = (
    "STATIC",
    "SS",
    "GSS",
    "TSS",
    "FAC2",
    "TFSS",
    "FISS",
    "VISS",
    "PLS",
    "PSS",
    "MFSC",
    "AUTO",
)


def add(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The sum of two chunks."""
    return one + other


def main() -> None:
    rows, columns = (int(word) for word in sys.argv[1:3]) if len(sys.argv) > 2 else (2000, 50)
    rng = np.random.default_rng(0)
    one, other = rng.random((2, rows, columns))
    for scheme in SCHEMES:
        made = gangline.map(add, one, other, scheme=scheme, details=True)
        is_right = np.array_equal(made.value, one + other)
        print(
            f"{scheme:8} {made.chunks:5} chunks  {made.seconds * 1000:8.2f} ms  "
            f"imbalance {made.imbalance:4.0%}  {'right' if is_right else 'WRONG'}"
        )


if __name__ == "__main__":
    main()
