# SPDX-License-Identifier: Apache-2.0
"""From a model to its steps: traced by torch.fx, with the shapes of all uncut activations."""

from __future__ import annotations

import copy
import operator
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from gangline.spec.errors import UnsupportedError
from gangline.tiling.layers.dense import Flatten
from gangline.tiling.layers.pointwise import Concatenation, Pointwise
from gangline.tiling.plan import Step
from gangline.tiling.supported import (
    POINTWISE_FUNCTIONS,
    POINTWISE_METHODS,
    adaptive_average,
    layer_of,
    refused,
    resample,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.tiling.geometry import Shape
    from gangline.tiling.layers.base import Layer

_one_at_a_time = threading.Lock()
"""While torch.fx traces, it replaces what every module of the process does when it is called."""
_MAX_NAMES = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVERAGE_NAMES = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_POOLS: dict[Any, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    F.max_pool1d: (nn.MaxPool1d, _MAX_NAMES),
    F.max_pool2d: (nn.MaxPool2d, _MAX_NAMES),
    F.max_pool3d: (nn.MaxPool3d, _MAX_NAMES),
    F.avg_pool1d: (nn.AvgPool1d, _AVERAGE_NAMES),
    F.avg_pool2d: (nn.AvgPool2d, (*_AVERAGE_NAMES, "divisor_override")),
    F.avg_pool3d: (nn.AvgPool3d, (*_AVERAGE_NAMES, "divisor_override")),
}
"""The modules that do what functions do, and the names of the functions' arguments behind the input."""
_ADAPTIVE = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)


def trace_steps(model: nn.Module, shape: Shape) -> list[Step]:
    """The steps of a model for an input of this shape; the first is the input, the last the output."""
    with _one_at_a_time:
        return _traced_steps(model, shape)


def _traced_steps(model: nn.Module, shape: Shape) -> list[Step]:
    try:
        traced = fx.symbolic_trace(model)
    except Exception as error:
        raise UnsupportedError(
            f"torch.fx cannot trace {type(model).__name__}, so it cannot be cut into tiles: {error}. "
            "To do: take conditions on values and loops of unknown length out of its forward()"
        ) from error
    shapes = _shapes(traced, model, shape)
    steps: list[Step] = []
    places: dict[fx.Node, int] = {}
    for node in traced.graph.nodes:
        if node.op == "output":
            return _ending_at(steps, places, node)
        sources = tuple(places[source] for source in _flat_inputs(node))
        layer = None if node.op == "placeholder" else _layer(node, traced, shapes)
        places[node] = len(steps)
        steps.append(Step(str(node.target), layer, sources, shapes[node]))
    raise AssertionError("a traced graph has an output")


def _ending_at(steps: list[Step], places: dict[fx.Node, int], output: fx.Node) -> list[Step]:
    result = output.args[0]
    if not isinstance(result, fx.Node):
        raise refused("the output", "several tensors", "instead of one")
    if sum(step.layer is None for step in steps) != 1:
        raise refused("the model", "several inputs", "instead of one")
    return steps[: places[result] + 1]


def _shapes(traced: fx.GraphModule, model: nn.Module, shape: Shape) -> dict[fx.Node, Shape]:
    """Found by a pass without any data."""
    found: dict[fx.Node, Shape] = {}

    class Shapes(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, Tensor):
                found[n] = tuple(result.shape)
            elif n.op != "output":
                raise refused(str(n.target), "a step", f"that makes {type(result).__name__}")
            return result

    kind = next((parameter.dtype for parameter in model.parameters()), torch.get_default_dtype())
    bare = copy.deepcopy(traced).eval().to("meta")
    with torch.no_grad():
        Shapes(bare, graph=traced.graph).run(torch.empty(shape, dtype=kind, device="meta"))
    return found


def _flat_inputs(node: fx.Node) -> list[fx.Node]:
    """The tensors that a step is given, as often as it is given them."""
    flat: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), flat.append)
    return flat


def _layer(node: fx.Node, traced: fx.GraphModule, shapes: dict[fx.Node, Shape]) -> Layer:
    sources = _flat_inputs(node)
    where, made = f"{node.name!r}", shapes[node]
    if node.op == "call_module":
        name = str(node.target)
        return layer_of(traced.get_submodule(name), f"module {name!r}", shapes[sources[0]], made)
    if node.op == "call_method" and node.target in POINTWISE_METHODS:
        return _pointwise(node, getattr(Tensor, str(node.target)), shapes)
    if node.target in POINTWISE_FUNCTIONS:
        return _pointwise(node, _plain(node.target), shapes)
    given = shapes[sources[0]] if sources else ()
    if node.target in (torch.flatten, "flatten") and _asked(node, ("start_dim", "end_dim")) in (
        [1],
        [1, -1],
    ):
        return Flatten()
    if node.target is torch.cat:
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        return Concatenation(int(dim) % len(made))  # type: ignore[arg-type]
    if node.target in _POOLS:
        make, names = _POOLS[node.target]
        options = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
        return layer_of(make(**options), f"step {where}", given, made)
    if node.target in _ADAPTIVE:
        return adaptive_average(where, given, made)
    if node.target is F.interpolate:
        names = ("size", "scale_factor", "mode", "align_corners")
        options = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
        return resample(where, given, made, options)
    raise refused(f"step {where}", getattr(node.target, "__name__", str(node.target)))


def _pointwise(node: fx.Node, function: Callable[..., Any], shapes: dict[fx.Node, Shape]) -> Layer:
    if any(shapes[source] != shapes[node] for source in _flat_inputs(node)):
        raise refused(f"step {node.name!r}", str(node.target), "of tensors of unlike shapes")
    return Pointwise(partial(_called, function, node.args, dict(node.kwargs)))


def _called(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], *tensors: Tensor
) -> Tensor:
    """The function with the tensors in the places of the nodes that it was traced with."""
    given = iter(tensors)
    kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}
    filled = fx.map_arg((args, kwargs), lambda _: next(given))
    result: Tensor = function(*filled[0], **filled[1])
    return result


def _plain(function: Any) -> Any:
    """`a += b` would overwrite what may be needed again."""
    in_place = {
        operator.iadd: operator.add,
        operator.isub: operator.sub,
        operator.imul: operator.mul,
    }
    return in_place.get(function, function)


def _asked(node: fx.Node, names: tuple[str, ...]) -> list[Any]:
    return [*node.args[1:], *(node.kwargs[name] for name in names if name in node.kwargs)]
