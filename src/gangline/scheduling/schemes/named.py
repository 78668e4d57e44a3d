# SPDX-License-Identifier: Apache-2.0
"""The schemes that have a name."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from gangline.scheduling.schemes import adaptive, daphne, formulas, profiled
from gangline.scheduling.schemes.bounded import ByFormula

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gangline.scheduling.chunks import Loop, Scheme

    Maker: TypeAlias = Callable[..., Scheme]


def _by(formula: Callable[..., formulas.Formula]) -> Maker:
    def make(loop: Loop, **parameters: float) -> Scheme:
        return ByFormula(formula(loop, **parameters))

    return make


_WEIGHTED: Any = partial(partial, adaptive.AdaptiveWeighted)

PLAIN: Mapping[str, Maker] = MappingProxyType(
    {
        "STATIC": _by(formulas.static),
        "SS": _by(formulas.self_scheduling),
        "GSS": _by(formulas.guided),
        "TSS": _by(formulas.trapezoid),
        "FAC2": _by(formulas.factoring2),
        "TFSS": _by(formulas.trapezoid_factoring),
        "FISS": _by(formulas.fixed_increase),
        "VISS": _by(formulas.variable_increase),
        "PLS": _by(formulas.performance_loop),
        "PSS": _by(formulas.probabilistic),
        "MSTATIC": _by(formulas.modified_static),
        "MFSC": _by(formulas.modified_fixed_size),
        "AUTO": _by(formulas.expert_grain),
        "WF2": adaptive.WeightedFactoring,
    }
)
"""Those whose chunks follow from the loop alone: they could be cut before it begins."""

LEARNING: Mapping[str, Maker] = MappingProxyType(
    {
        "FSC": profiled.FixedSize,
        "FAC": profiled.Factoring,
        "TAP": profiled.Tapering,
        "BOLD": profiled.Bold,
        "AWF": partial(adaptive.WeightedFactoring, learns=True),
        "AWF-B": _WEIGHTED(by_batch=True, with_overhead=False),
        "AWF-C": _WEIGHTED(by_batch=False, with_overhead=False),
        "AWF-D": _WEIGHTED(by_batch=True, with_overhead=True),
        "AWF-E": _WEIGHTED(by_batch=False, with_overhead=True),
        "AF": adaptive.AdaptiveFactoring,
    }
)
"""Those that go by what was measured, before or during the loop."""

SCHEMES: Mapping[str, Maker] = MappingProxyType({**PLAIN, **LEARNING})

DAPHNE: Mapping[str, Maker] = MappingProxyType(
    {
        **{name: PLAIN[name] for name in ("SS", "GSS", "PSS")},
        "STATIC": _by(daphne.static),
        "TSS": _by(daphne.trapezoid),
        "FAC2": _by(daphne.factoring2),
        "TFSS": _by(daphne.trapezoid_factoring),
        "FISS": _by(daphne.fixed_increase),
        "VISS": _by(daphne.variable_increase),
        "PLS": _by(daphne.performance_loop),
        "MSTATIC": _by(daphne.modified_static),
        "MFSC": _by(daphne.modified_fixed_size),
        "AUTO": _by(daphne.expert_grain),
    }
)
"""As DAPHNE's code computes them: `daphne:TFSS`."""

SHARING = frozenset({"AWF-B", "AWF-C", "AWF-D", "AWF-E"})
"""Those that tell `Loop.speeds` of each chunk while the loop runs."""

PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "PLS": ("swr",),
        "FSC": ("mean", "sigma", "overhead"),
        "FAC": ("mean", "sigma", "overhead"),
        "TAP": ("alpha", "mean", "sigma", "overhead"),
        "BOLD": ("mean", "sigma", "overhead"),
        **dict.fromkeys(SHARING, ("x",)),
    }
)
"""What may be given in parentheses."""
