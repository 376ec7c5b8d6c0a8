"""In which order nodes stand in a ring, so that its slowest link is as fast as can be.

A ring all-reduce is as slow as its slowest link, and uses n of the n (n-1) / 2 that there are. INTELLECT-1 (Jaghouar et
al. 2024, arXiv:2412.01152) measures the rates between all nodes now and then, and orders its ring by them. Rings here
follow the numbers of ranks: so the order says which node is started as node 0, which as node 1, and so on.

        A            100 between A and B, and between C and D; 10 between the pairs, but for 50 from B to C
       / \\
      B   D          A B C D: 100, 50, 100, 10       A C B D: 10, 50, 10, 100
       \\ /
        C
"""

from collections.abc import Sequence

from reference.errors import BadInput


def ring_order(rates: Sequence[Sequence[float]]) -> list[int]:
    """The order of nodes whose slowest link is the fastest, by a search that gives up early; node 0 comes first.

    Args:
        rates: of the link between two nodes, in any unit; in each direction the smaller of the two counts.

    Raises:
        BadInput: if that is no square, or a rate is not positive.
    """
    n = len(rates)
    if any(len(row) != n for row in rates):
        raise BadInput(f"rates between {n} nodes are {n} rows of {n}")
    both = [[min(rates[i][j], rates[j][i]) for j in range(n)] for i in range(n)]
    if any(not both[i][j] > 0 for i in range(n) for j in range(i)):
        raise BadInput("each pair of nodes has a link with a positive rate")
    if n < 4:
        return list(range(n))  # all rings are one
    levels = sorted({both[i][j] for i in range(n) for j in range(i)})
    found, low, high = list(range(n)), 0, len(levels) - 1
    while low <= high:  # the fastest level at which there is a ring
        middle = (low + high) // 2
        if ring := ring_of_links(both, levels[middle]):
            found, low = ring, middle + 1
        else:
            high = middle - 1
    return found


def ring_of_links(rates: Sequence[Sequence[float]], least: float) -> list[int] | None:
    """A ring of links of this rate or faster, if there is one."""
    n = len(rates)
    if any(sum(rates[i][j] >= least for j in range(n) if j != i) < 2 for i in range(n)):
        return None

    def extended(path: list[int]) -> list[int] | None:
        if len(path) == n:
            return path if rates[path[-1]][0] >= least else None
        for node in sorted(set(range(n)) - {*path}, key=lambda node: -rates[path[-1]][node]):
            if rates[path[-1]][node] >= least and (ring := extended([*path, node])):
                return ring
        return None

    return extended([0])


def slowest(order: Sequence[int], rates: Sequence[Sequence[float]]) -> float:
    """The rate of the slowest link of a ring."""
    pairs = zip(order, [*order[1:], order[0]], strict=True)
    return min(min(rates[i][j], rates[j][i]) for i, j in pairs)
