"""Two trees over the same ranks, so that every rank works: an inner node of one is a leaf of the other.

In a tree half of the ranks are leaves: they send once and are idle for the rest. Two trees, each for one half of the
data, use both directions of every rank's link. The first is the in-order tree: rank 0 on top, odd ranks are leaves.

    0 ─ 4 ─┬─ 2 ─┬─ 1       n = 7
           │     └─ 3
           └─ 6 ── 5

The second is its mirror image (n even), or the same shifted by one rank (n odd).

A rank has at most two parents and at most two children, counting both trees. So the edges can be given two colours
such that no rank has two children, or two parents, over edges of one colour: even and odd moments. At each moment a
rank sends at most one piece and receives at most one.

Sanders, Speck & Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

PIECES = 4  # of each half, unless said otherwise


@dataclass(frozen=True, slots=True)
class Hop:
    """A piece of one tree's half moves from a child to its parent (and, when broadcast, back at the mirrored time)."""

    time: int
    tree: int
    piece: int
    child: int
    parent: int


def in_order_parent(rank: int, n: int) -> int | None:
    """The rank above in the first tree; None for rank 0, the root."""
    if rank == 0:
        return None
    bit = rank & -rank
    above = (rank ^ bit) | bit << 1
    return above if above < n else rank ^ bit


def edges(n: int) -> list[tuple[int, int, int]]:
    """(tree, child, parent) of both trees."""
    place = (lambda rank: n - 1 - rank) if n % 2 == 0 else (lambda rank: (rank + 1) % n)
    first = [(rank, in_order_parent(rank, n)) for rank in range(1, n)]
    return [(0, child, parent) for child, parent in first] + [
        (1, place(child), place(parent)) for child, parent in first
    ]


def colours(n: int) -> dict[tuple[int, int], int]:
    """0 or 1 for each edge (tree, child): different where two share their child, or their parent.

    Every edge shares its child with at most one other and its parent with at most one other, in turns. So the edges
    form paths and circles of even length, along which the colours alternate.
    """
    neighbours = defaultdict(list)
    for tree, child, parent in edges(n):
        neighbours["child", child].append((tree, child))
        neighbours["parent", parent].append((tree, child))
    touching = defaultdict(list)
    for one, other in (pair for pair in neighbours.values() if len(pair) == 2):
        touching[one].append(other)
        touching[other].append(one)
    colour: dict[tuple[int, int], int] = {}
    for tree, child, _ in edges(n):
        pending = [((tree, child), 0)]
        while pending:
            edge, shade = pending.pop()
            if edge not in colour:
                colour[edge] = shade
                pending += [(other, 1 - shade) for other in touching[edge]]
    return colour


@lru_cache
def schedule(n: int, pieces: int) -> tuple[Hop, ...]:
    """All hops of a reduction up both trees, in the order of time.

    A child's first piece leaves at the first moment of its edge's colour after its own children's; one more piece
    follows at every other moment.
    """
    colour = colours(n)
    below = defaultdict(list)
    for tree, child, parent in edges(n):
        below[tree, parent].append(child)

    def departure(tree: int, child: int) -> int:
        after = max((departure(tree, grandchild) + 1 for grandchild in below[tree, child]), default=0)
        return after + (after + colour[tree, child]) % 2

    hops = [
        Hop(departure(tree, child) + 2 * piece, tree, piece, child, parent)
        for tree, child, parent in edges(n)
        for piece in range(pieces)
    ]
    return tuple(sorted(hops, key=lambda hop: hop.time))


def moves(rank: int, n: int, pieces: int) -> list[tuple[Hop | None, Hop | None]]:
    """What one rank does, moment by moment: (its piece to a parent, a child's piece to it), None for neither."""
    moments: dict[int, list[Hop | None]] = defaultdict(lambda: [None, None])
    for hop in schedule(n, pieces):
        if hop.child == rank:
            moments[hop.time][0] = hop
        if hop.parent == rank:
            moments[hop.time][1] = hop
    return [(up, down) for _, (up, down) in sorted(moments.items())]
