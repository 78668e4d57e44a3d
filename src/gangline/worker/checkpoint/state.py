# SPDX-License-Identifier: Apache-2.0
"""What is in a checkpoint: a copy of a worker's whole state as tensors and JSON, and the way back."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from gangline.spec.errors import LogError
from gangline.spec.position import ORDER
from gangline.worker.checkpoint.files import STATE_TENSORS, Contents
from gangline.worker.groups.state import pack_state, unpack_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from gangline.worker.groups.regroup import Results
    from gangline.worker.groups.snapshot import Snapshot
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.samples.generators import Numbers


def capture(prepared: Prepared, snapshot: Snapshot, results: Results) -> Contents:
    """Copies everything that training would go on to change."""
    exported = snapshot.export()
    del exported["parameters"]  # the models' own files have them, under their names
    del exported["tables"]  # they are among the buffers
    exported["orders"] = {key: value for key, value in results.items() if key[0] == ORDER}
    exported["random"] = _random_state(prepared)
    document, tensors = pack_state(exported)
    files = {
        _model_file(index, len(prepared.models)): _copied(_named_tensors(model))
        for index, model in enumerate(prepared.models)
    }
    files[STATE_TENSORS] = _copied({str(number): item for number, item in enumerate(tensors)})
    return Contents(msgspec.json.encode(_to_json(msgspec.msgpack.decode(document))), files)


def restore(prepared: Prepared, snapshot: Snapshot, contents: Contents) -> dict[str, Any]:
    """Loads a captured state into the prepared objects; returns what is not in them."""
    try:
        exported = _unpacked(contents)
        exported["parameters"] = [
            contents.tensors[_model_file(index, len(prepared.models))][name]
            for index, model in enumerate(prepared.models)
            for name, _ in model.named_parameters()
        ]
        exported["tables"] = []
        exported.setdefault("gradients", None)  # an older checkpoint has none
        trainable = [p.requires_grad for model in prepared.models for p in model.parameters()]
        exported.setdefault("trainable", trainable)
        rest = {
            "orders": exported.pop("orders"),
            "random": exported.pop("random"),
            "gradients": exported["gradients"],
        }
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise LogError(f"a state is not what this gangline writes: {error!r}") from error
    snapshot.load(exported)
    return rest


class RandomNumbers:
    """The state of random numbers that a checkpoint was taken in, if there was one.

    That is torch's own, and the generators that the loader was given.
    """

    def __init__(
        self, state: dict[str, Tensor] | None = None, generators: Sequence[Numbers] = ()
    ) -> None:
        self._state = state
        self._generators = generators

    def go_on(self) -> None:
        """The loop is where the checkpoint was taken: it draws what it would have drawn next.

        Only the first call counts. Before it, a resumed loop draws numbers that the first run did not:
        a DataLoader draws a seed whenever it is iterated.
        """
        state, self._state = self._state, None
        if state is not None:
            torch.set_rng_state(state["cpu"])
        if state is not None and "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
        for number, generator in enumerate(self._generators):
            if state is not None and f"generator {number}" in state:
                generator.set_state(state[f"generator {number}"])


def _random_state(prepared: Prepared) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if any(parameter.is_cuda for model in prepared.models for parameter in model.parameters()):
        state["cuda"] = torch.cuda.get_rng_state()
    for number, generator in enumerate(prepared.generators):
        state[f"generator {number}"] = generator.get_state()
    return state


def _model_file(index: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{index}.safetensors"


def _named_tensors(model: nn.Module) -> dict[str, Tensor]:
    named = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    return {**named, **dict(model.named_parameters())}


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _unpacked(contents: Contents) -> dict[str, Any]:
    stored = contents.tensors[STATE_TENSORS]
    tensors = [stored[str(number)] for number in range(len(stored))]
    document = msgspec.msgpack.encode(_from_json(msgspec.json.decode(contents.document)))
    exported: dict[str, Any] = unpack_state(document, tensors)
    return exported


def _to_json(node: Any) -> Any:
    """A packed state in which nothing is left that JSON does not know."""
    if isinstance(node, list):
        return [_to_json(item) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "value" and isinstance(content, bytes):
        return {"bytes": base64.b64encode(content).decode()}
    if kind == "value" and isinstance(content, float) and not math.isfinite(content):
        return {"float": str(content)}
    return {kind: content if kind == "value" else _to_json(content)}


def _from_json(node: Any) -> Any:
    """What `_to_json` was given."""
    if isinstance(node, list):
        return [_from_json(item) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "bytes":
        return {"value": base64.b64decode(content)}
    if kind == "float":
        return {"value": float(content)}
    return {kind: content if kind == "value" else _from_json(content)}
