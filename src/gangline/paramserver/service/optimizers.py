# SPDX-License-Identifier: Apache-2.0
"""The user's optimizer for some of its parameters alone, and what of it may change while it runs."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Adagrad, Optimizer, SparseAdam

from gangline.spec.errors import MismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Options = dict[str, Any]
"""What a parameter group says beside its parameters: lr, momentum, …"""

_OWN_WAYS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""How an optimizer computes on its device: a server's is another one."""
_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def check_shardable(optimizer: object) -> None:
    """Refuses what cannot update some parameters without knowing the others."""
    if not isinstance(optimizer, Optimizer):
        raise UnsupportedError(
            f"servers update with one torch optimizer, not with {type(optimizer).__name__}: put all "
            "parameters into one optimizer, with a parameter group for each kind of them"
        )
    name = type(optimizer).__name__
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    needs_closure = closure is not None and closure.default is inspect.Parameter.empty
    if isinstance(optimizer, LBFGS) or needs_closure:
        raise UnsupportedError(
            f"{name} computes the loss again within its step, which a server cannot: choose an "
            "optimizer whose step needs no closure, such as SGD or Adam"
        )
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    strange = [key for key in optimizer.state if id(key) not in own]
    if strange:
        raise UnsupportedError(
            f"{name} keeps state under {strange[0]!r:.60}, which is none of its parameters, so that it "
            "cannot be cut into shards: choose an optimizer that keeps its state per parameter"
        )


def clone(optimizer: Optimizer, own: Mapping[int, Tensor]) -> tuple[Optimizer, tuple[int, ...]]:
    """The same optimizer for a shard's own parameters, and which of the groups it has.

    `own` says which parameter stands for which, by the id of the original. Attributes are copied by
    hand, since `copy.copy` of an optimizer leaves out those of a user's class.
    """
    memo: dict[int, Any] = {
        id(p): own.get(id(p), p) for group in optimizer.param_groups for p in group["params"]
    }
    made: Optimizer = object.__new__(type(optimizer))
    left_out = {"param_groups", "state", *_HOOKS}
    for key, value in vars(optimizer).items():
        # A method of its own, such as a schedule's or ours around `step`, is the original's.
        is_wrapped = callable(value) and hasattr(type(optimizer), key)
        if key not in left_out and not is_wrapped:
            made.__dict__[key] = _copied(optimizer, key, value, memo)
    made.__dict__.update({hook: OrderedDict() for hook in _HOOKS})
    groups, numbers = [], []
    for number, group in enumerate(optimizer.param_groups):
        kept = [p for p in group["params"] if id(p) in own]
        if kept:
            options = {key: value for key, value in group.items() if key != "params"}
            options = _for_cpu(copy.deepcopy(options), kept)
            groups.append({"params": [own[id(p)] for p in kept], **options})
            numbers.append(number)
    made.__dict__["param_groups"] = groups
    made.__dict__["state"] = defaultdict(dict)
    for group in optimizer.param_groups:
        for p in group["params"]:
            if id(p) in own and p in optimizer.state:
                made.state[own[id(p)]] = on_cpu(optimizer.state[p])
    return made, tuple(numbers)


def on_cpu(value: Any) -> Any:
    """A copy of a value of an optimizer's state, with its tensors in main memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: on_cpu(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_cpu(inner) for inner in value)
    return value


def load_state(
    optimizer: Optimizer, parameters: Sequence[Tensor], state: Mapping[int, dict[str, Any]]
) -> None:
    """Gives a worker's optimizer the state that was pulled, by the indices of these parameters."""
    numbers = {id(p): index for index, p in enumerate(parameters)}
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    given = {
        place: state[numbers[id(p)]]
        for place, p in enumerate(ordered)
        if numbers.get(id(p)) in state
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": given})


def options_of(optimizer: Optimizer) -> tuple[Options, ...]:
    """What each parameter group says now, as it is sent with a push: schedules change it."""
    return tuple(
        {key: _plain(v) for key, v in group.items() if key != "params" and key not in _OWN_WAYS}
        for group in optimizer.param_groups
    )


def check_options(optimizer: Optimizer, numbers: Sequence[int], options: Sequence[Options]) -> None:
    """Refuses options that the optimizer does not have, or of another kind."""
    if not options:
        return
    if numbers and len(options) <= max(numbers):
        raise MismatchError(
            f"the push has options of {len(options)} parameter groups; the server's optimizer has "
            f"group {max(numbers)}"
        )
    for group, number in zip(optimizer.param_groups, numbers, strict=True):
        for key, value in options[number].items():
            if key == "params" or key in _OWN_WAYS or key not in group:
                known = ", ".join(sorted(set(group) - {"params"} - _OWN_WAYS))
                raise MismatchError(
                    f"the push sets {key!r} of parameter group {number}, which is no option of "
                    f"{type(optimizer).__name__} here; its options are {known}"
                )
            if _kind(value) != _kind(_plain(group[key])) and None not in (value, group[key]):
                raise MismatchError(
                    f"the push sets {key!r} of parameter group {number} to {value!r}, where the "
                    f"server has {group[key]!r}"
                )


def set_options(optimizer: Optimizer, numbers: Sequence[int], options: Sequence[Options]) -> None:
    """Takes over options that were checked."""
    if not options:
        return
    for group, number in zip(optimizer.param_groups, numbers, strict=True):
        for key, value in options[number].items():
            present = group[key]
            if isinstance(present, Tensor):
                present.copy_(torch.tensor(value, dtype=present.dtype))
            elif isinstance(value, list) and isinstance(present, tuple):
                group[key] = tuple(value)
            else:
                group[key] = value


def make_step(optimizer: Optimizer) -> None:
    """Makes its step without torch's hooks for all optimizers: those are for the user's own."""
    step: Any = type(optimizer).step
    if getattr(step, "hooked", False):
        step = step.__wrapped__
    step(optimizer)


def takes_sparse(optimizer: Optimizer, group: Options) -> bool:
    """Whether it can update by the rows of a sparse gradient, with these options."""
    for kind in (SGD, SparseAdam, Adagrad):
        if isinstance(optimizer, kind) and type(optimizer).step is kind.step:
            return not group.get("weight_decay") and not group.get("momentum")
    return False


def wants_sparse(optimizer: Optimizer) -> bool:
    """Whether it refuses gradients that are not sparse."""
    return isinstance(optimizer, SparseAdam)


def _copied(optimizer: Optimizer, key: str, value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, dict(memo))
    except TypeError as error:
        raise UnsupportedError(
            f"{type(optimizer).__name__}.{key} cannot be copied for a server ({error}): keep it "
            "outside of the optimizer"
        ) from error


def _for_cpu(options: Options, parameters: Sequence[Tensor]) -> Options:
    """The options as they hold in main memory, where the originals are on a device."""
    options = {
        key: on_cpu(value) if isinstance(value, Tensor) else value for key, value in options.items()
    }
    if all(p.is_cpu for p in parameters):
        return options
    ways = {"foreach": None, "fused": None, "capturable": False}
    return {**options, **{key: value for key, value in ways.items() if key in options}}


def _plain(value: Any) -> Any:
    """An option as it travels."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "switch"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, list | tuple):
        return f"list of {len(value)}"
    return type(value).__name__
