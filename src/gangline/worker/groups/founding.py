# SPDX-License-Identifier: Apache-2.0
"""How founders meet before there is a view: again without those that are lost on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.collectives import GroupKey, OutsiderGroup
from gangline.collectives.transports import make_group
from gangline.protocol.messages import Failed, founders_group
from gangline.spec.errors import ExchangeError, MismatchError
from gangline.spec.exchange.structure import structure_of

if TYPE_CHECKING:
    from gangline.collectives import Group
    from gangline.collectives.transports import Door
    from gangline.protocol.messages import Gathered
    from gangline.spec.exchange.structure import Structure
    from gangline.worker.line.client import ControlClient


def meet(
    client: ControlClient,
    door: Door,
    *,
    run: str,
    structure: Structure | None,
    timeout_s: float,
    after: int = -1,
) -> tuple[Gathered, Group]:
    """Waits until the founders gather for more than the `after`-th time, and makes their group.

    Who comes later stands outside until it is in a view.
    """
    while True:
        gathered = client.wait_gathered(timeout_s, after=after)
        after = gathered.attempt
        if gathered.worker not in gathered.members:
            return gathered, OutsiderGroup(rank=len(gathered.members))
        try:
            group = make_group(
                door,
                GroupKey(run=run, view=0, attempt=after),
                worker=gathered.worker,
                members=gathered.members,
                addresses=gathered.addresses,
                structure=structure_of(structure, gathered.members),
            )
        except ExchangeError as error:
            report(client, after, error)
        else:
            return gathered, group


def report(client: ControlClient, attempt: int, error: ExchangeError) -> None:
    """Says that founders lost each other. Raises the error where nobody could mend that."""
    if not client.is_elastic or isinstance(error, MismatchError):
        raise error
    client.send(Failed(group=founders_group(attempt), step=0, error=str(error)))
