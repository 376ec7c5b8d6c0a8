"""expert_parallel.place_experts: Experts by load, with copies.

rankwise check expert_parallel.place_experts
rankwise hint expert_parallel.place_experts

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence


def place_experts(loads: Sequence[int], ranks: int, slots: int) -> list[int]:
    """Experts by load, with copies.

    Some experts get many more tokens than others, and a layer waits for its
    busiest rank. So there are more slots than experts: the spare ones hold
    copies of busy experts. Copies of an expert share its tokens equally. All
    ranks have as many slots, since a slot is memory.

    Which experts get how many copies, and which slots go together on a rank, so
    that the busiest rank has as little to do as possible? No quick way to the
    best placement is known. A greedy way comes close: it gives out one spare
    slot after another, and then puts one slot after another on a rank, and
    never looks back. What passes is any placement whose busiest rank has no
    more to do than with that.

    Args:
        loads: of the experts, in tokens, whole numbers from 0 on, in any order.
        ranks: n, which divides the slots.
        slots: of all ranks together, at least as many as experts.

    Returns: a list with the expert of each slot, those of rank 0 first, then
    those of rank 1, and so on. Each expert has at least one slot. An expert may
    have two on one rank.

    Budget: 50,000 experts in 80,000 slots on 4,000 ranks in two seconds of
    processor time; 100 + 20 for each slot are the lines that it may run.
    """
    raise NotImplementedError("not solved yet")
