"""Which ranks average with which: the matrix of a gossip round, and how fast its rounds bring all ranks to one value.

    x  <-  W x          W[i, j]: what rank i takes of rank j's value; rows and columns sum to 1

Columns that sum to 1 keep the mean; rows that do let equal ranks stay equal. Then the distance from the mean shrinks
by the second largest singular value of W in each round, at least: sigma^t after t rounds (Xiao & Boyd 2004).

| topology            | neighbours | rounds to halve the distance  | remarks                                           |
|---------------------|------------|-------------------------------|---------------------------------------------------|
| ring                | 2          | grow as n^2                   |                                                   |
| torus               | 4          | grow as n                     | rows and columns as nearly equal as n allows      |
| exponential         | ≈ 2 log2 n | grow as log n                 | distances 1, 2, 4, ...                            |
| one-peer            | 1          | n = 2^k: none after k rounds  | distance 2^(t mod k) in round t (Ying et al. 2021)|
| random pairs        | 1          | constant, in the mean         | Boyd et al. 2006; drawn anew from a shared seed   |
| complete            | n - 1      | none after one round          | an all-reduce                                     |

Ying et al. 2021: arXiv:2110.13363. Boyd et al. 2006: "Randomized gossip algorithms".
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from reference.errors import BadInput, require_sizes

from .draws import generator_of

Topology = Callable[[int, int], Tensor]
"""Of n ranks and a round, counted from 0: the matrix [n, n] in float64."""


def ring(n: int, step: int = 0) -> Tensor:
    """Half of itself, a quarter of each neighbour."""
    return shifts(n, {0: 0.5, 1: 0.25, -1: 0.25})


def torus(n: int, step: int = 0) -> Tensor:
    """Half of itself, an eighth of each neighbour in a row and a column."""
    rows = max(each for each in range(1, math.isqrt(n) + 1) if n % each == 0)
    grid = torch.arange(n).view(rows, n // rows)
    matrix = torch.eye(n, dtype=torch.float64) / 2
    for dim in (0, 1):
        for by in (1, -1):
            matrix[grid.flatten(), grid.roll(by, dim).flatten()] += 0.125
    return matrix


def exponential(n: int, step: int = 0) -> Tensor:
    """Equal parts of itself and of ranks 1, 2, 4, ... away, to both sides; two of one that is there on both."""
    distances = [sign * 2**power for power in range(hops(n)) for sign in (1, -1)]
    return shifts(n, {0: 1.0}, *({distance: 1.0} for distance in distances))


def one_peer(n: int, step: int = 0) -> Tensor:
    """Half of itself, half of the rank 2^(step mod log2 n) away."""
    return shifts(n, {0: 0.5, 2 ** (step % max(1, hops(n))): 0.5})


def random_pairs(n: int, step: int = 0, seed: int = 0) -> Tensor:
    """The mean with a partner; all ranks draw the same pairs, so no message is needed to agree on them."""
    order = torch.randperm(n, generator=generator_of(seed, step))
    matrix = torch.eye(n, dtype=torch.float64)
    for one, other in order[: n - n % 2].view(-1, 2).tolist():  # of an odd number, one has no partner
        matrix[[one, one, other, other], [one, other, one, other]] = 0.5
    return matrix


def complete(n: int, step: int = 0) -> Tensor:
    """An n-th of each rank."""
    return torch.full((n, n), 1 / n, dtype=torch.float64)


TOPOLOGIES: Mapping[str, Topology] = MappingProxyType(
    {
        "ring": ring,
        "torus": torus,
        "exponential": exponential,
        "one-peer": one_peer,
        "random pairs": random_pairs,
        "complete": complete,
    }
)


def shifts(n: int, *takes: Mapping[int, float]) -> Tensor:
    """Each rank takes so much of the rank that is so far away; divided by the number of `takes`."""
    require_sizes(ranks=n)
    matrix, own = torch.zeros(n, n, dtype=torch.float64), torch.arange(n)
    for take in takes:
        for distance, part in take.items():
            matrix[own, (own + distance) % n] += part / len(takes)
    return matrix


def hops(n: int) -> int:
    """How many powers of two are below n."""
    return (n - 1).bit_length()


def check(matrix: Tensor) -> None:
    """See that a matrix keeps the mean.

    Raises:
        BadInput: if it has negative numbers, or a row or a column does not sum to 1.
    """
    sums = torch.stack([matrix.sum(0), matrix.sum(1)])
    if bool((matrix < 0).any()) or bool(((sums - 1).abs() > 1e-12).any()):
        raise BadInput("each row and each column of a mixing matrix sums to 1, of numbers that are 0 or more")


def second(matrix: Tensor) -> float:
    """By how much a round shrinks the distance from the mean, at least: the largest singular value beside that of 1.

    Of a symmetric matrix it is the second largest eigenvalue, without its sign.
    """
    n = len(matrix)
    return float(np.linalg.norm(matrix.numpy() - 1 / n, ord=2))


def distance(x: Tensor) -> float:
    """Of the ranks' values from their mean: x is [n, N]."""
    return float((x - x.mean(0)).norm())


def bound(topology: Topology, n: int, rounds: int) -> list[float]:
    """What can be left of the distance after each round, from before the first on, whatever the values are.

    It is `second` of the product of all rounds' matrices: of one symmetric matrix, a power of its second eigenvalue.
    """
    product, left = torch.eye(n, dtype=torch.float64), [1.0]
    for step in range(rounds):
        product = topology(n, step) @ product
        left.append(second(product))
    return left
