"""What several puzzles on gradients with memory share."""

from reference.zero.cost import all_reduce

DOUBLE = 8  # bytes of a float64


def most_in_sum(n: int, length: int, itemsize: int = DOUBLE) -> int:
    """Bytes of the busiest rank where so many numbers are summed around a ring."""
    return max(all_reduce(length, n, rank) for rank in range(n)) * itemsize if n > 1 else 0


def two_ways(n: int, message: int) -> int:
    """Bytes of a rank that sends one message to each other rank, and one more to all of them."""
    return 2 * (n - 1) * message
