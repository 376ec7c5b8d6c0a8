"""frameworks.read_a_hang: Read a hang.

rankwise check frameworks.read_a_hang
rankwise hint frameworks.read_a_hang

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def missing_call(
    dumps: Sequence[Sequence[Mapping[str, Any]]],
    groups: Mapping[str, Sequence[int]],
) -> tuple[int, str, int, str]:
    """Read a hang.

    A job does nothing any more. torch's flight recorder has kept the last calls
    that each rank has made (`torch._C._distributed_c10d._dump_fr_trace_json()`,
    whose "entries" these are). Which rank has not made which call?

    Each rank makes the same calls in the same order as all others, step after
    step: some in its tensor-parallel group, some in its data-parallel group. A
    call of a group is done when all of its ranks have made it. A rank may have
    several calls in flight at once, and then waits for the oldest. One rank has
    done something else:

    - It has stopped before a call: it reads data, or is in an endless loop, or
      sleeps. Then others wait for it, and others again wait for those. That a
      rank has not made a call in one group means nothing while it waits in
      another.
    - Or it has left out a call, and continues. In that group its calls are then
      one ahead of those of the others: what it says under a number is not what
      they say under that number. The group has three ranks or more.

    Where the one that has stopped is missed in both of its groups, what is
    asked for is the call that others have been waiting for longest.

    Args:
        dumps: for each rank a list of its last calls, the oldest first. Each is
            a dict with

            process_group       [name, description], such as ["3", "dp"]
            collective_seq_id   the number of the call in its group, from 1 on
            profiling_name      such as "gloo:all_reduce"
            input_sizes         such as [[4096]]
            time_created_ns     when it was made
            is_p2p              whether it is a send or a receive; those mean
                                nothing here
            state               always "scheduled", as gloo has it

            Recorders keep so many calls, and may have kept more collectives of
            one rank than of another.
        groups: the ranks of each group, by its name.

    Returns: (rank, name of the group, number of the call that it has not made,
    profiling_name of this call).

    Budget: a few looks at each call.
    """
    raise NotImplementedError("not solved yet")
