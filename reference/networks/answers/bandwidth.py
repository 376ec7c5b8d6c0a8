"""Bandwidth from a time: what nccl-tests calls algbw and busbw.

Algorithm bandwidth is size over time. It falls as ranks are added even if every link is as busy as before, because an
all-reduce moves 2(n-1)/n of its tensor through each link. Bus bandwidth multiplies by that factor. It can be compared
with what the hardware is sold as, for any number of ranks.

NVIDIA nccl-tests, doc/PERFORMANCE.md.
"""

from reference.errors import BadInput
from reference.trace import Op


def bus_factor(op: Op | str, ranks: int) -> float:
    """Bytes that the busiest link must carry for each byte of size: bus bandwidth over algorithm bandwidth.

    The size is that of the whole tensor: of an all-gather its result, of a reduce-scatter its input.

    Args:
        op: or its name, here or in nccl-tests: "all_reduce", "alltoall", "sendrecv", "reduce_scatter_perf".
        ranks: n.

    Raises:
        BadInput: if it is no collective that moves a tensor.
    """
    name = op if isinstance(op, Op) else named(op)
    if name is Op.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if name in (Op.REDUCE_SCATTER, Op.ALL_GATHER, Op.ALL_TO_ALL, Op.SCATTER, Op.GATHER):
        return (ranks - 1) / ranks
    if name in (Op.BROADCAST, Op.REDUCE, Op.SEND, Op.RECV):
        return 1.0
    raise BadInput(f"{name} has no bus bandwidth: it is not a collective that moves a tensor")


def named(name: str) -> Op:
    """The operation that has this name here, or in nccl-tests; in a sendrecv, each rank sends to the next.

    Raises:
        BadInput: if there is none.
    """
    known = {plain(op): op for op in Op} | {"sendrecv": Op.SEND}
    if (found := known.get(plain(name))) is None:
        raise BadInput(f"no operation is called {name!r}; there are {', '.join(Op)} and sendrecv")
    return found


def plain(name: str) -> str:
    """A name without what spellings differ in: "All-Gather" and "all_gather_perf" are "allgather"."""
    return name.lower().removesuffix("_perf").replace("_", "").replace("-", "").replace(" ", "")


def bus_bandwidth(ranks: int, size: float, seconds: float) -> float:
    """Bus bandwidth of an all-reduce of `size` bytes that took `seconds`, in bytes per second."""
    return 2 * (ranks - 1) / ranks * size / seconds
