"""Orders of computation for a pipeline of p ranks and m micro-batches, each a small table (`unroll`).

| schedule      | bubble           | activations that a rank holds       | paper                            |
|---------------|------------------|-------------------------------------|----------------------------------|
| naive         | m (p-1) (F+B)    | 1                                   |                                  |
| GPipe         | (p-1) (F+B)      | m                                   | Huang et al. 2019                |
| 1F1B          | (p-1) (F+B)      | p - rank, at most m                 | Narayanan et al. 2021, PD-2BW    |
| interleaved   | (p-1) (F+B) / v  | p + (p - 1 - 2 rank) / v, at most m | Narayanan et al. 2021, Megatron  |
| breadth-first | (p-1) (F+B) / v  | m                                   | Lamy-Poirier 2023                |

F and B are the times that all layers of a rank take, forward and backward, of one micro-batch; v is how many stages a
rank has. The bubble is the time for which a rank waits, in a step in which it computes for m (F+B). Activations are
counted in micro-batches: of all layers of a rank. Two rows have a condition: interleaved goes in groups of p, so p
divides m, and breadth-first keeps its ranks busy where m is at least p; else they wait for longer.
"""

from collections.abc import Callable

from reference.errors import require_sizes

from .schedule import Action, Kind, Schedule
from .unroll import Table, Work, unroll


def naive(p: int, m: int) -> Schedule:
    """One micro-batch after the other: only one rank computes at a time."""
    return of_tables(p, m, lambda rank, m: [(m, "F B")])


def gpipe(p: int, m: int) -> Schedule:
    """All forward, then all backward.

    Huang et al. 2019, "GPipe: Efficient training of giant neural networks using pipeline parallelism".
    """
    return of_tables(p, m, lambda rank, m: [(m, "F"), (m, "B")])


def one_f_one_b(p: int, m: int) -> Schedule:
    """As many forward as fill the pipeline, then a backward after each forward.

    Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training", sec. 3.2 (PipeDream-Flush).
    """
    return of_tables(p, m, lambda rank, m: [(p - 1 - rank, "F"), (m - (p - 1 - rank), "F B"), (p - 1 - rank, "B")], p)


def forward_only(like: Schedule, m: int) -> Schedule:
    """Only forward, over the stages of another schedule: what inference needs.

    Args:
        like: whose stages are to be gone through.
        m: micro-batches.
    """
    require_sizes(m=m)
    route = like.routes[0]
    own = [[stage for stage in route if like.placement[stage] == rank] for rank in range(like.ranks)]
    lines = tuple(tuple(Action(Kind.FORWARD, stage, k) for stage in stages for k in range(m)) for stages in own)
    return Schedule(lines, like.placement, (route,) * m)


def of_tables(p: int, m: int, table: Callable[[int, int], Table], least: int = 1) -> Schedule:
    """A schedule in which rank r has stage r alone.

    Args:
        p: ranks.
        m: micro-batches.
        table: of a rank, for at least `least` micro-batches.
        least: so many make the pattern; where there are fewer, the others are left out of it.
    """
    require_sizes(p=p, m=m)
    enough = max(m, least)
    lines = [unroll(table(rank, enough), [[(rank, k) for k in range(enough)]]) for rank in range(p)]
    return Schedule.straight(lines, range(p), enough).first(m)


def interleaved(p: int, m: int, v: int) -> Schedule:
    """1F1B over v stages on each rank, p apart from each other: a micro-batch goes around the ranks v times.

    Micro-batches go in groups of p: a group passes one stage of a rank, and then the next.

    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", sec. 2.2.
    """
    require_sizes(p=p, m=m, v=v)
    groups = range(0, m, p)  # the last one is filled up, and what is too much left out

    def line(rank: int) -> list[Action]:
        forward = [(chunk * p + rank, k + i) for k in groups for chunk in range(v) for i in range(p)]
        backward = [((v - 1 - s // p) * p + rank, k) for s, k in forward]
        return _alternating(forward, backward, ahead=min(2 * (p - 1 - rank) + (v - 1) * p, len(forward)))

    filled = Schedule.straight((line(rank) for rank in range(p)), [s % p for s in range(p * v)], p * len(groups))
    return filled.first(m)


def breadth_first(p: int, m: int, v: int) -> Schedule:
    """All micro-batches through the first stage of each rank, then through the second; backward likewise.

    Each stage is needed in one stretch of time in each direction: FSDP gathers its parameters twice, however many
    micro-batches there are. The price is that activations of all of them are held.

    Lamy-Poirier 2023, "Breadth-first pipeline parallelism".
    """
    require_sizes(p=p, m=m, v=v)

    def line(rank: int) -> list[Action]:
        forward = [(chunk * p + rank, k) for chunk in range(v) for k in range(m)]
        backward = [(chunk * p + rank, k) for chunk in reversed(range(v)) for k in range(m)]
        return _alternating(forward, backward, ahead=len(forward))

    return Schedule.straight((line(rank) for rank in range(p)), [s % p for s in range(p * v)], m)


def _alternating(forward: Work, backward: Work, ahead: int) -> list[Action]:
    """So many forward; then a forward and a backward in turn; then the rest of backward."""
    pairs = len(forward) - ahead
    return unroll([(ahead, "F0"), (pairs, "F0 B1"), (ahead, "B1")], [forward, backward])
