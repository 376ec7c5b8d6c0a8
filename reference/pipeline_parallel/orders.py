"""Orders of computation for a pipeline of p ranks and m micro-batches, each a small table (`unroll`).

| schedule         | bubble           | activations that a rank holds       | paper                            |
|------------------|------------------|-------------------------------------|----------------------------------|
| naive            | m (p-1) (F+B)    | 1                                   |                                  |
| GPipe            | (p-1) (F+B)      | m                                   | Huang et al. 2019                |
| 1F1B             | (p-1) (F+B)      | p - rank, at most m                 | Narayanan et al. 2021, PD-2BW    |
| interleaved      | (p-1) (F+B) / v  | p + (p - 1 - 2 rank) / v, at most m | Narayanan et al. 2021, Megatron  |
| interleaved-even | (p-1) (F+B) / v  | g + (2p-1 - g - 2 rank) / v, or m   | as torch groups them             |
| breadth-first    | (p-1) (F+B) / v  | m                                   | Lamy-Poirier 2023                |

F and B are the times that all layers of a rank take, forward and backward, of one micro-batch; v is how many stages a
rank has. The bubble is the time for which a rank waits, in a step in which it computes for m (F+B). Activations are
counted in micro-batches: of all layers of a rank.

Interleaved micro-batches go in groups. Groups of p hold least, and reach the bubble of the table where p divides m;
else the last group is short, and all ranks wait in it as if it were full. Even groups, of g = ceil(m / floor(m / p))
micro-batches at most, have that bubble for every m from p on. So: where p divides m, or memory is short, take
`interleaved`; else `interleaved_even`, whose step is shorter, by a quarter with p = 8, m = 9 and v = 4, and whose ranks
hold more, up to m. Breadth-first keeps its ranks busy where m is at least p.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

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

    Fan et al. 2020, "DAPPLE"; Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training", sec. 3.2
    (PipeDream-Flush).
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
    groups = -(-m // p)  # the last one is filled up, and what is too much left out
    return _in_groups(p, v, [p] * groups).first(m)


def interleaved_even(p: int, m: int, v: int) -> Schedule:
    """Interleaved, in groups that are as even as possible, of p micro-batches or more: none is small and waited for.

    Where p divides m it is the same order. Elsewhere it is shorter, never longer, and its warm-up holds more.

    It extends that of torch's `ScheduleInterleaved1F1B` to any m; as "flexible PP" in Llama Team 2024, "The Llama 3
    herd of models", sec. 3.3.2, where a group may have any size.
    """
    require_sizes(p=p, m=m, v=v)
    groups = max(1, m // p)
    return _in_groups(p, v, [m // groups + (group < m % groups) for group in range(groups)])


def _in_groups(p: int, v: int, sizes: Sequence[int]) -> Schedule:
    """1F1B over v stages a rank: each group passes one of them, then the next. No group is larger than the first."""
    groups = [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]

    def line(rank: int) -> list[Action]:
        forward = [(chunk * p + rank, k) for group in groups for chunk in range(v) for k in group]
        backward = [((v - 1 - s // p) * p + rank, k) for s, k in forward]
        return _alternating(forward, backward, ahead=min(2 * (p - 1 - rank) + (v - 1) * sizes[0], len(forward)))

    return Schedule.straight((line(rank) for rank in range(p)), [s % p for s in range(p * v)], sum(sizes))


def breadth_first(p: int, m: int, v: int) -> Schedule:
    """All micro-batches through the first stage of each rank, then through the second; backward likewise.

    Each stage is needed in one stretch of time in each direction: FSDP gathers its parameters twice, however many
    micro-batches there are. The price is that activations of all of them are held.

    torch's `ScheduleLoopedBFS` goes backward from the last micro-batch to the first. On every rank all forwards come
    first, so that is the same step with other numbers, neither shorter nor smaller: here the order of forward is kept.

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
