"""Tokens of several ranks, and the experts that they choose: what the puzzles of exchanges share.

Letters of shapes: T tokens of a rank, k experts of a token, D width, E experts, n ranks. Cases say `tokens`, `liked`,
`k`, and `each`, which is E / n.
"""

import torch
from torch import Tensor

from puzzles.grading.puzzle import Case, Inputs, cases

DOUBLE, INTEGER = 8, 8  # bytes
WIDTH = 3
MOST = 9  # tokens that a rank has at most

TOKENS = {  # of n ranks: how many tokens each has
    "different": lambda n: [2 + (3 * rank + 2) % 5 for rank in range(n)],
    "the same": lambda n: [4] * n,
    "none on the first": lambda n: [0] + [3 + rank % 3 for rank in range(1, n)],
    "all on the last": lambda n: [0] * (n - 1) + [7],
    "a single one": lambda n: [0] * (n - 1) + [1],
    "none": lambda n: [0] * n,
}
LIKED = {  # what is added to the scores by which tokens choose: [n, E / n]
    "all": lambda n, each: torch.zeros(n, each),
    "few": lambda n, each: -0.5 * torch.arange(n * each).view(n, each),
    "not the first rank's": lambda n, each: torch.tensor([-100.0] + [0.0] * (n - 1))[:, None].expand(n, each),
    "not the last rank's": lambda n, each: torch.tensor([0.0] * (n - 1) + [-100.0])[:, None].expand(n, each),
}
ANY = {  # to draw from, for `on_any_ranks`
    "tokens": [each for each in TOKENS if each != "none"],
    "liked": tuple(LIKED),
    "each": (1, 2, 3),
    "k": lambda so_far: range(1, min(3, so_far.n * so_far.each) + 1),
}


EXCHANGES = (
    cases(worlds=(2, 4), tokens=("different",), liked=("all", "few"), each=(2,), k=(2,))
    + cases(worlds=(4,), tokens=("none on the first", "none"), liked=("all",), each=(2,), k=(2,))
    + cases(worlds=(3,), tokens=("the same",), liked=("not the last rank's", "all"), each=(1, 3), k=(2,))
    + cases(worlds=(1, 5), tokens=("different",), liked=("few",), each=(3,), k=(3,))
    + cases(worlds=(8,), tokens=("all on the last",), liked=("all",), each=(2,), k=(2,))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=("different",), liked=("few",), each=(2,), k=(2,))
)
"""Cases of rows that go to their experts, and of those that come back."""


def tokens_of(case: Case, rank: int) -> int:
    """How many tokens a rank has."""
    return TOKENS[case.tokens](case.n)[rank]


def choices_of(case: Case, rank: int) -> Tensor:
    """Experts of a rank's tokens, [T, k], none of them twice."""
    experts = case.n * case.each
    scores = (
        case.normal(rank, tokens_of(case, rank), experts, name="scores")
        + LIKED[case.liked](case.n, case.each).flatten()
    )
    return scores.argsort(-1, descending=True)[:, : case.k]


def counts_of(case: Case) -> Tensor:
    """How many rows each rank has for each expert of each rank: [n, n, E / n]."""
    experts = torch.arange(case.n * case.each)
    rows = [(choices_of(case, rank)[..., None] == experts).sum((0, 1)) for rank in range(case.n)]
    return torch.stack(rows).view(case.n, case.n, case.each)


def copies_of(case: Case) -> Tensor:
    """To how many tokens of each rank each rank has to do with: [n, n], not more than rows."""
    ranks = [choices_of(case, rank) // case.each for rank in range(case.n)]
    return torch.stack([torch.stack([(own == other).any(1).sum() for other in range(case.n)]) for own in ranks])


def bytes_there_and_back(between: Tensor) -> int:
    """What the rank sends that sends most: rows to others, and as many as it has of others. `between` is [n, n]."""
    away = between * (1 - torch.eye(len(between), dtype=between.dtype))
    return DOUBLE * WIDTH * int((away.sum(0) + away.sum(1)).max())


def rows_of_experts(chosen: list[Tensor], rank: int, each: int) -> list[tuple[int, Tensor, Tensor]]:
    """By expert of a rank and by source: (source, tokens, which of their choices it is), in the order of tokens."""
    return [
        (source, *(own == expert).nonzero(as_tuple=True))
        for expert in range(rank * each, (rank + 1) * each)
        for source, own in enumerate(chosen)
    ]


def chosen_by(inputs: Inputs) -> list[Tensor]:
    """The choices of all ranks."""
    return [each["chosen"] for each in inputs]
