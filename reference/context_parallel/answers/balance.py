"""What the slowest rank has to do in each layout, and which layout is best.

| layout     | pairs with causal attention             | blocks of other ranks, with a window of w tokens |
|------------|-----------------------------------------|--------------------------------------------------|
| contiguous | the last rank: (2n - 1) / n of the mean | as far as the window reaches back: (w-1) / L     |
| zigzag     | all alike                               | (w-1) / (L/2), of lower and of higher ranks      |
| striped    | nearly alike                            | all, from w = n on                               |

So a wide window wants zigzag, and a narrow one wants contiguous tokens: those that see each other are neighbours.
`cost.pairs` counts for any mask, piece by piece.
"""


def best_layout(tokens: int, ranks: int, window: int, block: int) -> tuple[str, list[int]]:
    """The layout in which the slowest rank has least to do, and what the slowest rank has to do in each layout.

    Args:
        tokens: S, of which 2 · ranks is a divisor.
        ranks: n.
        window: w: a token sees itself and the w - 1 before it.
        block: what it costs to get the block of another rank, where a pair of a query and a key costs 1.

    Returns:
        "contiguous", "zigzag" or "striped", and the costs of the slowest rank in these three, in this order.
    """
    slowest = {
        "contiguous": max(_contiguous(tokens, ranks, window, block, rank) for rank in range(ranks)),
        "zigzag": max(_zigzag(tokens, ranks, window, block, rank) for rank in range(ranks)),
        "striped": max(_striped(tokens, ranks, window, block, rank) for rank in range(ranks)),
    }
    return min(slowest, key=slowest.__getitem__), list(slowest.values())


def _contiguous(tokens: int, ranks: int, window: int, block: int, rank: int) -> int:
    local = tokens // ranks
    others = min(rank, -(-(window - 1) // local))
    return _pairs(rank * local, local, 1, window) + block * others


def _zigzag(tokens: int, ranks: int, window: int, block: int, rank: int) -> int:
    half = tokens // (2 * ranks)
    reach = -(-(window - 1) // half)
    others = min(rank, reach) + min(ranks - 1 - rank, reach)
    chunks = rank, 2 * ranks - 1 - rank
    return sum(_pairs(chunk * half, half, 1, window) for chunk in chunks) + block * others


def _striped(tokens: int, ranks: int, window: int, block: int, rank: int) -> int:
    return _pairs(rank, tokens // ranks, ranks, window) + block * min(ranks, window) - block


def _pairs(first: int, count: int, stride: int, window: int) -> int:
    """What so many tokens see, of which the first stands at `first`: position + 1 tokens each, at most the window."""
    growing = min(max((window - 1 - first) // stride + 1, 0), count)
    return growing * (first + 1) + stride * growing * (growing - 1) // 2 + (count - growing) * window
