# SPDX-License-Identifier: Apache-2.0
"""Traces a model by torch.fx, and cuts the graph where one value is all that comes after it needs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch.fx
from torch import nn

from gangline.spec.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Node = torch.fx.Node
_INSTEAD = "or train the whole model on each machine by gangline.prepare"


def segments_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The model as modules to be called one after the other, as many as there can be."""
    graph = _traced(model)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        names = ", ".join(node.name for node in inputs)
        raise UnsupportedError(
            f"the model cannot be cut: {type(model).__name__}.forward takes {len(inputs)} inputs "
            f"({names}), and stages hand on one tensor. Give it one input, {_INSTEAD}"
        )
    body = [node for node in graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    ends = list(_ends(body, inputs[0]))
    found, entry, begin = [], inputs[0], 0
    for stop, crossing in ends:
        found.append(_segment(model, body[begin:stop], entry, crossing))
        entry, begin = crossing, stop
    return found


class _Tracer(torch.fx.Tracer):
    """Goes into every module but those that are known to be opaque; notes the first that fails."""

    def __init__(self, opaque: set[str]) -> None:
        super().__init__()
        self._opaque = opaque
        self.failed: str | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self._opaque or super().is_leaf_module(
            m, module_qualified_name
        )

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or self.path_of_module(m)
            raise


def _traced(model: nn.Module) -> torch.fx.Graph:
    """What the model does. A module that cannot be traced becomes one node, whatever it does."""
    parameters = inspect.signature(type(model).forward).parameters
    fixed = {
        name: one.default
        for name, one in parameters.items()
        if one.default is not inspect.Parameter.empty
    }
    opaque: set[str] = set()
    while True:
        tracer = _Tracer(opaque)
        try:
            graph = tracer.trace(model, concrete_args=fixed or None)
        except Exception as error:
            if tracer.failed is None or tracer.failed in opaque:
                where = f"{tracer.failed!r}" if tracer.failed else f"{type(model).__name__}.forward"
                raise UnsupportedError(
                    f"the model cannot be cut: {where} cannot be traced by torch.fx ({error}). Move "
                    f"what depends on the values of tensors into a submodule of its own, {_INSTEAD}"
                ) from error
            opaque.add(tracer.failed)
        else:
            _drop_inputs(graph, len(parameters) - 1 - len(fixed))
            return graph


def _drop_inputs(graph: torch.fx.Graph, kept: int) -> None:
    """Takes out inputs that have their default, with the checks that torch.fx makes of them."""

    def erase(node: Node) -> None:
        for user in list(node.users):
            erase(user)
        graph.erase_node(node)

    for node in [node for node in graph.nodes if node.op == "placeholder"][kept:]:
        erase(node)


def _ends(body: list[Node], entry: Node) -> Iterator[tuple[int, Node]]:
    """After how many nodes the graph may be cut, and which value goes on."""
    place = {node: index for index, node in enumerate(body)}
    last = {node: _last_use(node, place) for node in (entry, *body)}
    live = {entry}
    for index, node in enumerate(body):
        live = {one for one in (*live, node) if last[one] > index}
        if len(live) == 1:
            yield index + 1, next(iter(live))


def _last_use(node: Node, place: dict[Node, int]) -> int:
    """The place of the last node that needs this one; behind all where it is the model's output."""
    return max((place.get(user, len(place)) for user in node.users), default=-1)


def _segment(
    model: nn.Module, nodes: list[Node], entry: Node, crossing: Node
) -> tuple[str, nn.Module]:
    graph = torch.fx.Graph()
    made: dict[Node, Node] = {entry: graph.placeholder("x")}

    def of(node: Node) -> Node:
        if node not in made:  # a parameter or buffer that the model uses directly
            made[node] = graph.node_copy(node, of)
        return made[node]

    for node in nodes:
        made[node] = graph.node_copy(node, of)
    graph.output(made[crossing])
    targets = [str(node.target) for node in nodes if node.op == "call_module"]
    name = targets[0] if targets else nodes[0].name
    return name, torch.fx.GraphModule(model, graph)
