"""How fast a ring agrees: the eigenvalues of its matrix are a cosine, sampled at n places (Davis 1979)."""

from math import cos, pi


def ring_rate(ranks: int, keep: float) -> float:
    """What is left of the distance from the mean after a round, at worst.

    Args:
        ranks: n.
        keep: the part of its own value that a rank keeps; each neighbour's has half of the rest.

    Returns:
        The second largest eigenvalue without its sign; 0 for one rank.
    """
    if ranks == 1:
        return 0.0
    slow, fast = (keep + (1 - keep) * cos(2 * pi * wave / ranks) for wave in (1, ranks // 2))
    return max(abs(slow), abs(fast))
