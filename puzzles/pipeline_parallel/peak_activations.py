"""pipeline_parallel.peak_activations: How many activations a rank holds.

rankwise check pipeline_parallel.peak_activations
rankwise hint pipeline_parallel.peak_activations

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def peak_activations(order: str, rank: int, p: int, m: int, v: int) -> int:
    """How many activations a rank holds.

    A stage that has computed a micro-batch forward holds its activations until
    backward has used them. How many does a rank hold at most? That is what
    decides how many micro-batches, or how large ones, fit into memory. Count
    one for each stage and micro-batch. Four orders, of p ranks and m
    micro-batches:

        GPipe           all forward, then all backward.
        1F1B            rank r does p-1-r forward to begin with, so that the
                        ranks after it have something to do; then a forward and
                        a backward in turn; then the backward that is left.
        interleaved     1F1B with v stages on each rank: stages r, p+r, 2p+r,
                        ... Micro-batches go in groups of p, each group through
                        all v stages of a rank. To begin with, rank r does (v-1)
                        p forward, one for each micro-batch of a group and each
                        stage but the last, and 2 (p-1-r) more, for the way to
                        the last rank and back; then a forward and a backward in
                        turn; then what is left.
        breadth-first   v stages on each rank: all micro-batches forward through
                        the first, then all through the second, ...; then all
                        backward.

    To begin with, a rank does at most all the forward work that there is.

    Args:
        order: "GPipe", "1F1B", "interleaved" or "breadth-first".
        rank: r, from 0 to p-1.
        p: ranks.
        m: micro-batches; of "interleaved" a multiple of p.
        v: stages on a rank; 1 of "GPipe" and "1F1B".

    Returns: how many, an int.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
