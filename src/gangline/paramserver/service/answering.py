# SPDX-License-Identifier: Apache-2.0
"""What a pull is answered with: whole parameters, or the rows of them that have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.paramserver.service.changes import union
from gangline.paramserver.service.messages import Values
from gangline.spec.errors import MismatchError

if TYPE_CHECKING:
    from torch import Tensor

    from gangline.paramserver.service.messages import Pulling
    from gangline.paramserver.service.shard import Shard

_INDEX_BYTES = 8


def values_for(shard: Shard, request: Pulling) -> Values:
    """The values of a shard as they are now, as far as who asks does not have them."""
    lazy = {} if request.lazy is None else request.lazy
    changed = {}
    values: list[Tensor | None] = []
    places = {index: place for place, index in enumerate(shard.indices)}
    for index in _order(shard, request):
        place, found = places[index], None
        if index in lazy:
            found = _among(shard, place, request)
        elif not request.is_rows_only:
            found = _changed(shard, place, request)
        if found is not None:
            changed[index] = (found, shard.rows(index, found))
        is_left_out = request.is_rows_only or found is not None
        values.append(None if is_left_out else shard.value(place))
    return Values(applied=shard.applied, history=shard.history, values=values, changed=changed)


def _order(shard: Shard, request: Pulling) -> tuple[int, ...]:
    """In which its parameters are sent, by their indices."""
    order = request.order or shard.indices
    if sorted(order) != sorted(shard.indices):
        raise MismatchError(
            f"shard {shard.number} holds the parameters {shard.indices}, and is asked for them in the "
            f"order {order}: all workers must train the same model"
        )
    return order


def _changed(shard: Shard, place: int, request: Pulling) -> Tensor | None:
    """The rows that who asks lacks; None: it is sent all of them, which is not more."""
    index = shard.indices[place]
    own = {} if request.own is None else request.own
    if request.standing is None or (index in own and own[index] is None):
        return None
    history, applied = request.standing
    # Who has read more than this shard knows is given what there is, as a whole pull would.
    if history != shard.history or applied > shard.applied:
        return None
    found = shard.changed_since(place, applied)
    if index in own:
        found = union(found, shard.checked_rows(place, own[index]))
    if found is None or not _pays(shard.length(place), shard.row_bytes(place), len(found)):
        return None
    return found


def _among(shard: Shard, place: int, request: Pulling) -> Tensor:
    """The rows that who asks wants and lacks, whatever else has changed."""
    rows, applied = request.lazy[shard.indices[place]]
    is_known = request.standing is not None and request.standing[0] == shard.history
    if is_known:
        # Who has read more than this shard knows is given what there is.
        applied = applied.masked_fill(applied > shard.applied, -1)
    else:
        applied = applied.new_full(applied.shape, -1)
    return shard.changed_among(place, rows, applied)


def _pays(length: int, row_bytes: int, count: int) -> bool:
    """Whether so many rows and their numbers are fewer bytes than all rows."""
    return count * (row_bytes + _INDEX_BYTES) < length * row_bytes
