"""The order of one rank, written out: what `orders` says in tables.

Every rank calls the same function with its own number, and no rank asks another one.
"""

from reference.errors import BadInput
from reference.pipeline_parallel.schedule import Action, Kind


def gpipe_order(rank: int, p: int, m: int) -> list[Action]:
    """All forward, then all backward.

    Args:
        rank: of p; it has stage number `rank`.
        p: ranks.
        m: micro-batches.

    Huang et al. 2019, "GPipe: Efficient training of giant neural networks using pipeline parallelism".
    """
    forward = [Action(Kind.FORWARD, rank, k) for k in range(m)]
    backward = [Action(Kind.BACKWARD, rank, k) for k in range(m)]
    return forward + backward


def one_f_one_b_order(rank: int, p: int, m: int) -> list[Action]:
    """As many forward as fill the stages after this one; a forward and a backward in turn; what is left of backward.

    Args:
        rank: of p; it has stage number `rank`.
        p: ranks.
        m: micro-batches.

    Fan et al. 2020, "DAPPLE"; Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training", sec. 3.2
    (PipeDream-Flush).
    """
    warm_up = min(p - 1 - rank, m)
    order = [Action(Kind.FORWARD, rank, k) for k in range(warm_up)]
    for k in range(m - warm_up):
        order.append(Action(Kind.FORWARD, rank, warm_up + k))
        order.append(Action(Kind.BACKWARD, rank, k))
    return order + [Action(Kind.BACKWARD, rank, k) for k in range(m - warm_up, m)]


def interleaved_order(rank: int, p: int, m: int, v: int) -> list[Action]:
    """1F1B over v stages on each rank: a group of p micro-batches passes one of them, and then the next.

    Args:
        rank: of p; it has the stages rank, p + rank, 2p + rank, ...
        p: ranks.
        m: micro-batches, a multiple of p.
        v: stages on a rank.

    Raises:
        BadInput: if m is no multiple of p.

    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", sec. 2.2.
    """
    if m % p:
        raise BadInput(f"micro-batches go in groups of {p}: take a multiple, not {m}")
    forward, backward = [], []
    for first in range(0, m, p):
        for chunk in range(v):
            forward += [Action(Kind.FORWARD, chunk * p + rank, k) for k in range(first, first + p)]
        for chunk in reversed(range(v)):
            backward += [Action(Kind.BACKWARD, chunk * p + rank, k) for k in range(first, first + p)]
    warm_up = min((v - 1) * p + 2 * (p - 1 - rank), m * v)
    order = forward[:warm_up]
    for pair in zip(forward[warm_up:], backward, strict=False):
        order += pair
    return order + backward[m * v - warm_up :]
