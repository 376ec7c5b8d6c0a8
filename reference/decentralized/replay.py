"""An asynchronous training again, exactly: what was late in it is late in the same way.

This is `plain_unscheduled.asynchronous` with: weights on several servers, each of which had an order of its own.

Two asynchronous runs never are the same: which gradient comes first is decided by the network. But a run is a function
of the order in which gradients came and of the versions that they are of. Servers record both, a few numbers for an
update, and from the record one process computes the run again, to the last bit. A run that failed can so be looked at
again, as often as one likes, with a debugger in it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from reference.errors import BadInput

from .parameter_server import Arrival, StepSize, shards


def replay(
    weights: Tensor,
    gradient: Callable[[int, int, Tensor], Tensor],
    records: Sequence[Sequence[Arrival]],
    rate: StepSize,
) -> Tensor:
    """The weights [N] after a recorded run, equal to those that its servers had in every bit.

    Args:
        weights: [N], as the run began.
        gradient: of a worker, its step and the weights: [N]. It must compute what that worker has computed.
        records: what each server has applied, in its order.
        rate: as the servers had it.

    Raises:
        BadInput: for records that no run has made.
    """
    servers = len(records)
    versions = [[piece] for piece in shards(weights, servers)]  # of each server, those that have been
    reads: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # of each gradient: the version of each piece
    for server, record in enumerate(records):
        for arrival in record:
            reads[arrival.worker, arrival.step][server] = arrival.read
    known: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def is_known(key: tuple[int, int]) -> bool:
        read = reads[key]
        if key not in known and len(read) == servers and all(read[each] < len(versions[each]) for each in read):
            whole = torch.cat([versions[server][read[server]] for server in range(servers)])
            known[key] = shards(gradient(*key, whole), servers)
        return key in known

    while left := [each for each in range(servers) if len(versions[each]) <= len(records[each])]:
        moved = False
        for server in left:
            arrival = records[server][len(versions[server]) - 1]
            if is_known((arrival.worker, arrival.step)):
                part = known[arrival.worker, arrival.step][server]
                versions[server].append(versions[server][-1].sub(part, alpha=rate(arrival.staleness)))
                moved = True
        if not moved:
            raise BadInput("a gradient in the record is of weights that come after it, or did not reach all servers")
    return torch.cat([of_server[-1] for of_server in versions])
