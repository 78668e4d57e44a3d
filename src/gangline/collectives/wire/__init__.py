# SPDX-License-Identifier: Apache-2.0
"""The wire transport: shared memory within a host, a TCP ring between hosts.

    listener = wire.listen("10.0.0.7")              # once per process; publish listener.address
    group = wire.connect(key, rank=rank, addresses=addresses, listener=listener, token=token)
    group.all_reduce(tensor, header)
    group.close()

Members prove the run's token to each other; without TLS, what follows is neither secret nor safe
from somebody who controls the network.
"""

from gangline.collectives.wire.connecting import connect as connect
from gangline.collectives.wire.group import WireGroup as WireGroup
from gangline.collectives.wire.joining.listener import Listener as Listener
from gangline.collectives.wire.joining.listener import listen as listen
from gangline.collectives.wire.nouns import HopStats as HopStats
from gangline.collectives.wire.nouns import WireAddress as WireAddress
from gangline.collectives.wire.nouns import WireOptions as WireOptions
