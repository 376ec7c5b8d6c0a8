"""composition.fold_the_experts_mesh: Fold the mesh of the experts.

rankwise check composition.fold_the_experts_mesh
rankwise hint composition.fold_the_experts_mesh

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping


def fold_the_experts_mesh(
    rank: int, sizes: Mapping[str, int], ep: int, etp: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Fold the mesh of the experts.

    Attention splits matrices along tp and sequences along cp. An expert is
    small, and in it no token looks at another: it needs neither. So layers of
    experts see the same ranks in another way ("parallel folding"). Outside,
    nothing changes: stages (pp) and replicas (dp_replicate) are whole blocks of
    ranks. Inside a block, the row of dp_shard x cp x tp ranks gets other axes,
    here 2 x 4 x 1 in the place of 2 x 2 x 2:

        ranks of a block     0   1   2   3   4   5   6   7
        dp_shard, cp, tp   000 001 010 011 100 101 110 111
        edp, ep, etp       000 010 020 030 100 110 120 130

    edp    replicas of the same experts. Over these their gradients are summed,
           and over dp_replicate.
    ep     ranks with different experts: tokens travel among them.
    etp    ranks that share each matrix of the same experts. It need not be tp.

    In this order, the outermost first: etp counts fastest.

    Args:
        rank: of all of them.
        sizes: ranks along each axis as attention sees them, by name: "pp",
            "dp_replicate", "dp_shard", "cp", "tp", the outermost first.
        ep, etp: ranks along the axes of the experts. edp follows.

    Returns: a tuple of four tuples: the rank's coordinates on (pp,
    dp_replicate, edp, ep, etp), and the ranks of its group along edp, along ep
    and along etp, each in order, itself included. None where the row of a block
    does not divide into ep x etp.

    Budget: a rank knows its own groups without a look at all ranks.
    """
    raise NotImplementedError("not solved yet")
