"""Which rank holds which tokens, and which of them look at which, as arithmetic.

| function        | layout                          | says                                                            |
|-----------------|---------------------------------|-----------------------------------------------------------------|
| `zigzag_rotary` | zigzag                          | a rank's tokens, each turned by the angles of its own position  |
| `stripe`        | striped                         | how many tokens, on which diagonal the mask lies, how many pairs |
| `to_compute`    | contiguous, zigzag, striped     | the one rectangle of a block that is not forbidden              |

`layouts.layout` and `tokens.pieces` are the general case. Brandon et al. 2023, "Striped attention"; zigzag: Zhu 2024,
"ring-flash-attention"; rotary angles: Su et al. 2021, "RoFormer".
"""

import torch
from torch import Tensor


def zigzag_rotary(x: Tensor, base: float, rank: int, ranks: int) -> Tensor:
    """A rank's tokens of a sequence in zigzag, turned by rotary angles.

    Args:
        x: [B, S, d], all tokens; d is even.
        base: of the frequencies base^(-2i/d).
        rank: whose tokens.
        ranks: n. The sequence is cut into 2n chunks, at S i // 2n.

    Returns:
        [B, its tokens, d].
    """
    cuts = [x.shape[1] * i // (2 * ranks) for i in range(2 * ranks + 1)]
    head, tail = (range(cuts[chunk], cuts[chunk + 1]) for chunk in (rank, 2 * ranks - 1 - rank))
    places = torch.tensor([*head, *tail], dtype=torch.int64)
    half = x.shape[2] // 2
    angles = places.unsqueeze(1) * base ** (-torch.arange(half, dtype=x.dtype) / half)
    first, second = x[:, places].chunk(2, dim=-1)
    turned = first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()
    return torch.cat(turned, dim=-1)


def stripe(tokens: int, ranks: int, rank: int, owner: int) -> tuple[int, int, int]:
    """How a rank's queries look at another rank's keys where rank r holds tokens r, r + n, r + 2n, ...

    Returns:
        How many queries the rank has; d, where its query a sees the owner's key b if b - a <= d; how many pairs of a
        query and a key that it sees there are.
    """
    queries = len(range(rank, tokens, ranks))
    diagonal = 0 if owner <= rank else -1
    return queries, diagonal, queries * (queries + 1 + 2 * diagonal) // 2


def to_compute(
    layout: str, tokens: int, local: int, ranks: int, rank: int, owner: int
) -> tuple[int, int, int, int] | None:
    """The smallest rectangle of a rank's queries and an owner's keys that has all pairs which causal attention allows.

    Args:
        layout: "contiguous", "zigzag" or "striped".
        tokens: S, at most n · local. Positions from S on are padding.
        local: positions that each rank holds, an even number.
        ranks: n.
        rank: whose queries.
        owner: whose keys.

    Returns:
        First query, end of queries, first key (always 0), end of keys; None where nothing is allowed.
    """
    first_key = _position(layout, local, ranks, owner, 0)
    begin = _before(layout, local, ranks, rank, first_key)
    end = _before(layout, local, ranks, rank, tokens)
    if begin >= end:
        return None
    last_query = _position(layout, local, ranks, rank, end - 1)
    return begin, end, 0, _before(layout, local, ranks, owner, last_query + 1)


def _position(layout: str, local: int, ranks: int, rank: int, index: int) -> int:
    """Where a rank's token stands."""
    if layout == "contiguous":
        return rank * local + index
    if layout == "striped":
        return rank + ranks * index
    half = local // 2
    return rank * half + index if index < half else (2 * ranks - 2 - rank) * half + index


def _before(layout: str, local: int, ranks: int, rank: int, position: int) -> int:
    """How many of a rank's tokens stand before a position."""
    if layout == "contiguous":
        return min(max(position - rank * local, 0), local)
    if layout == "striped":
        return min(-(-(position - rank) // ranks), local)
    half = local // 2
    return sum(min(max(position - chunk * half, 0), half) for chunk in (rank, 2 * ranks - 1 - rank))
