"""The binomial tree: the family of broadcast, reduce, scatter and gather in ceil(log2 n) steps.

A vertex's parent is itself less its lowest set bit, so the descendants of a vertex are the numbers right after it:

    0 ── 4 ── 6 ── 7        root 0; vertex 4 stands for 4, 5, 6, 7
      │    └─ 5
      ├─ 2 ── 3
      └─ 1

Vertices count from the root: rank (root + v) mod n is vertex v.
"""


def parent(vertex: int) -> int:
    """The vertex above. The root, 0, has none: its own number comes back."""
    return vertex & (vertex - 1)


def children(vertex: int, n: int) -> list[int]:
    """The vertices below, in order. The last has the largest family: send to it first, receive from it last."""
    distances = (1 << level for level in range(n.bit_length()))
    return [vertex + d for d in distances if (d < vertex & -vertex or not vertex) and vertex + d < n]


def family(vertex: int, n: int) -> int:
    """How many vertices a vertex stands for: itself and all below. They are `vertex`, `vertex + 1`, ..."""
    return min(vertex & -vertex, n - vertex) if vertex else n
