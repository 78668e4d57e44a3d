# SPDX-License-Identifier: Apache-2.0
"""A scheme as people write it: `GSS`, `TAP(alpha=1.3)`, `daphne:TFSS`, `package.module:Name`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from gangline.scheduling.chunks import Loop
from gangline.scheduling.schemes.bounded import Bounded, Guarded
from gangline.scheduling.schemes.checking import check_scheme
from gangline.scheduling.schemes.named import DAPHNE, LEARNING, PARAMETERS, SCHEMES, SHARING
from gangline.spec.errors import UsageError
from gangline.spec.hints import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.scheduling.chunks import Scheme
    from gangline.scheduling.speeds import Speeds
    from gangline.scheduling.timing import Timing

    Load: TypeAlias = Callable[[str], Any]
    """Imports `package.module:Name`: `gangline.spec.usercode.load_named`."""

_WRITTEN = re.compile(r"^(?:(?P<home>[\w.]+):)?(?P<name>[\w-]+)(?:\((?P<parameters>[^()]*)\))?$")
_DAPHNE = "daphne"


class SchemeSpec(msgspec.Struct, frozen=True):
    """Which scheme, and with what parameters: from it the scheme of each loop is made."""

    text: str
    """As `parse_scheme` reads it."""
    maker: Any
    parameters: dict[str, float] = {}
    is_learning: bool = True
    """Whether chunks depend on what was measured, so that they cannot be cut beforehand."""
    name: str = ""
    """Without its parameters; empty of a user's own."""

    @property
    def shares_speeds(self) -> bool:
        """Whether the scheme itself tells `Loop.speeds` of each chunk."""
        return self.name in SHARING

    def make(
        self,
        total: int,
        workers: int,
        *,
        grain: int = 1,
        weights: Sequence[float] | None = None,
        timing: Timing | None = None,
        speeds: Speeds | None = None,
    ) -> Scheme:
        """The scheme of one loop; what may be known of the loop is said at `Loop`."""
        loop = Loop.of(total, workers, grain=grain, weights=weights, timing=timing, speeds=speeds)
        if not self.name:
            own = Guarded(self.maker, loop, self.text, **self.parameters)
            return Bounded(own, loop, name=self.text)
        return Bounded(self.maker(loop, **self.parameters), loop, name=self.text)

    def __str__(self) -> str:
        return self.text


def parse_scheme(text: str, *, load: Load | None = None) -> SchemeSpec:
    """The scheme that is meant. `load` imports a user's own; without it there are none.

    Raises UsageError with the schemes that there are.
    """
    found = _WRITTEN.match(text.strip())
    if found is None:
        raise UsageError(f"scheme {text!r}: write a name{_advice(text)}")
    home, name = found["home"], found["name"]
    parameters = _parameters(found["parameters"] or "", text=text)
    if home is not None and home != _DAPHNE:
        return _own(f"{home}:{name}", parameters, text=text.strip(), load=load)
    known = name.upper()
    _check_known(known, home=home, text=text)
    unknown = set(parameters) - set(PARAMETERS.get(known, ()) if home is None else ())
    if unknown:
        accepted = ", ".join(PARAMETERS.get(known, ())) or "none"
        raise UsageError(f"scheme {text!r}: no parameter {min(unknown)!r}; it takes {accepted}")
    _check_values(known, parameters, text=text)
    maker = DAPHNE[known] if home else SCHEMES[known]
    said = _said(home, known, parameters)
    return SchemeSpec(said, maker, parameters, known in LEARNING, known)


def _check_known(name: str, *, home: str | None, text: str) -> None:
    known = DAPHNE if home else SCHEMES
    if name in known:
        return
    hint = did_you_mean(name, known)
    own = "" if home else ", and any class of your own as package.module:Name"
    raise UsageError(f"no scheme {text!r}; there are {', '.join(known)}{own}{hint}")


def _advice(text: str) -> str:
    """What is probably meant by something that is no scheme."""
    if "/" in text:
        return "; two of them, as in FAC2/GSS, are for the nodes of a job (where='job')"
    module, dot, name = text.strip().rpartition(".")
    if dot and re.fullmatch(r"[\w.]+", module) and name.isidentifier():
        return f"; a class of your own is {module}:{name}"
    return ", and parameters as in TAP(alpha=1.3)"


def _parameters(written: str, *, text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in filter(None, (one.strip() for one in written.split(","))):
        key, equals, value = part.partition("=")
        try:
            found[key.strip()] = _number(value)
        except ValueError:
            raise UsageError(
                f"scheme {text!r}: {part!r} is no parameter; write name=number"
            ) from None
        if not equals or not 0 <= found[key.strip()] < float("inf"):
            raise UsageError(f"scheme {text!r}: {part!r} must be finite, and not below 0")
    return found


def _number(written: str) -> float:
    """Whole numbers stay whole, for classes that count with them."""
    return int(written) if written.strip().isdecimal() else float(written)


def _check_values(name: str, parameters: dict[str, float], *, text: str) -> None:
    if not 0 < parameters.get("swr", 0.5) <= 1:
        raise UsageError(f"scheme {text!r}: swr is the static part of the loop, above 0, at most 1")
    if parameters.get("x", 2.0) < 1:
        raise UsageError(f"scheme {text!r}: a chunk is 1/x of a worker's part; x is at least 1")
    if {"mean", "sigma", "overhead"} & set(parameters) and not parameters.get("mean"):
        raise UsageError(f"scheme {text!r}: give mean, what an item takes in seconds, above 0")


def _own(path: str, parameters: dict[str, float], *, text: str, load: Load | None) -> SchemeSpec:
    if load is None:
        raise UsageError(
            f"scheme {text!r}: a class of your own cannot be used here; name one of ours"
        )
    maker = load(path)
    check_scheme(maker, parameters, name=text)
    return SchemeSpec(text, maker, parameters, True)


def _said(home: str | None, name: str, parameters: dict[str, float]) -> str:
    inside = ",".join(f"{key}={value:g}" for key, value in parameters.items())
    return f"{home + ':' if home else ''}{name}{f'({inside})' if inside else ''}"
