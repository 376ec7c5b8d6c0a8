"""What each client of a federated training has: unequal numbers of examples, and not the same mixture of classes.

dirichlet    for each class, draw shares of all clients from Dir(alpha); deal its examples out so
             (Hsu, Qi & Brown 2019, arXiv:1909.06335): alpha 100 is nearly even, 0.1 leaves a client a class or two
chosen       which clients take part in a round, drawn by all ranks alike
"""

from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reference.errors import BadInput, require_sizes

from .draws import generator_of

ATTEMPTS = 1000  # to deal examples so that each client has some


class Examples(NamedTuple):
    """Of one client; they stay on its rank."""

    features: Tensor  # [m, F]
    labels: Tensor  # [m] of int64


def dirichlet(labels: Tensor, clients: int, alpha: float, seed: int = 0, least: int = 2) -> list[Tensor]:
    """Which examples each client has: indices, each example with one client.

    Args:
        labels: [M] of int64.
        clients: that share them.
        alpha: how even classes are over clients; larger is more even.
        seed: of the draw.
        least: examples that each client has; it is drawn again until they do.

    Raises:
        BadInput: for an alpha that is not above 0, too few examples, or an alpha by which some client has too few.
    """
    require_sizes(clients=clients)
    if not 0 < alpha < inf:
        raise BadInput(f"alpha of a Dirichlet distribution is above 0, and finite, not {alpha:g}")
    if len(labels) < 2 * clients * least:
        raise BadInput(f"{len(labels)} examples are too few for {clients} clients: give {2 * clients * least}")
    generator = np.random.default_rng(seed)
    for _ in range(ATTEMPTS):
        parts: list[list[Tensor]] = [[] for _ in range(clients)]
        for label in labels.unique():
            places = (labels == label).nonzero().flatten()
            places = places[torch.from_numpy(generator.permutation(len(places)))]
            borders = (np.cumsum(generator.dirichlet([alpha] * clients)) * len(places)).astype(int)[:-1]
            for part, piece in zip(parts, places.tensor_split(torch.from_numpy(borders)), strict=True):
                part.append(piece)
        dealt = [torch.cat(part) for part in parts]
        if min(map(len, dealt)) >= least:
            return dealt
    raise BadInput(
        f"an alpha of {alpha:g} left one of {clients} clients fewer than {least} examples, {ATTEMPTS} times in a row: "
        "take a larger one, or fewer clients"
    )


def chosen(clients: int, per_round: int, number: int, seed: int = 0) -> list[int]:
    """So many different clients for the round of this number: the same on every rank, without a message."""
    return sorted(torch.randperm(clients, generator=generator_of(seed, number))[:per_round].tolist())


def volunteers(clients: int, part: float, number: int, seed: int = 0) -> list[int]:
    """Each client by itself with this probability, as differential privacy assumes it: also none, or all."""
    return (torch.rand(clients, generator=generator_of(seed, number)) < part).nonzero().flatten().tolist()
