"""Experts on ranks, by load, with copies: `placement.place` in a page.

DeepSeek-AI 2025, EPLB; Graham 1969, "Bounds on multiprocessing timing anomalies".
"""

import heapq
from collections.abc import Sequence


def place_experts(loads: Sequence[int], ranks: int, slots: int) -> list[int]:
    """The expert of each slot, so that the busiest rank has little more to do than the mean.

    Args:
        loads: [E], tokens of each expert; copies of it share them equally.
        ranks: n, each with slots / n slots.
        slots: of all ranks together, those of rank 0 first; at least E, and n divides them.
    """
    copies, heaviest = [1] * len(loads), [(-load, expert) for expert, load in enumerate(loads)]
    heapq.heapify(heaviest)  # by the load of a copy
    for _ in range(slots - len(loads)):
        expert = heaviest[0][1]
        copies[expert] += 1
        heapq.heapreplace(heaviest, (-loads[expert] / copies[expert], expert))
    shares = [(load / count, expert) for expert, (load, count) in enumerate(zip(loads, copies, strict=True))]
    found, lightest = [[] for _ in range(ranks)], [(0.0, rank) for rank in range(ranks)]  # ranks that have room
    for share, expert in sorted(shares, reverse=True):
        for _ in range(copies[expert]):
            load, rank = heapq.heappop(lightest)
            found[rank].append(expert)
            if len(found[rank]) < slots // ranks:
                heapq.heappush(lightest, (load + share, rank))
    return [expert for own in found for expert in own]
