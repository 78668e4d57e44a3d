# SPDX-License-Identifier: Apache-2.0
"""Least squares by the normal equations: every chunk of rows adds its part of XᵀX and Xᵀy.

python examples/linear_regression.py
python examples/linear_regression.py data.csv       # the last column is what is predicted
"""

import sys

import numpy as np

import gangline


def normal_equations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """XᵀX with Xᵀy beside it, for a chunk; the last column of X is 1, for the intercept."""
    x = np.column_stack([x, np.ones(len(x))])
    return np.column_stack([x.T @ x, x.T @ y])


def made_up(rows: int = 10_000) -> np.ndarray:
    """y = 2·x₀ − x₁ + 0.5·x₂ + 3, and some noise."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 3))
    y = x @ [2.0, -1.0, 0.5] + 3.0 + 0.01 * rng.standard_normal(rows)
    return np.column_stack([x, y])


def main() -> None:
    data = np.loadtxt(sys.argv[1], delimiter=",") if len(sys.argv) > 1 else made_up()
    # With ordered=True the sum has the same bits whenever the chunks are the same.
    sums = gangline.reduce(
        normal_equations, data[:, :-1], data[:, -1], scheme="GSS", ordered=True, progress=True
    )
    *weights, intercept = np.linalg.solve(sums[:, :-1], sums[:, -1])
    print("weights:", ", ".join(f"{weight:.3f}" for weight in weights))
    print(f"intercept: {intercept:.3f}")


if __name__ == "__main__":
    main()
