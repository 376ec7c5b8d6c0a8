"""Ranks that lie: how the honest ones still learn, as long as they are more.

This is `plain_unscheduled.robust` with: other rules, messages of which no rank needs all, and attacks to try them on.

One rank of a thousand moves a mean anywhere. Where f of n ranks may lie, a rule must not depend on how far they go:

| rule         | what counts                                         | stands     | source                             |
|--------------|-----------------------------------------------------|------------|------------------------------------|
| mean         | all                                                 | no liar    |                                    |
| median       | of each number the middle one                       | n > 2f     | Yin et al. 2018, arXiv:1803.01498  |
| trimmed mean | of each number all but the f largest and smallest   | n > 2f     | the same                           |
| Krum         | the gradient with the nearest n - f - 2 neighbours  | n > 2f + 2 | Blanchard et al. 2017, 1703.02757  |

None is safe for free. Liars that know the others hide inside their spread, each step a little to one side (Baruch et
al. 2019, arXiv:1902.06156), and where ranks have other data, an honest one may look like a liar.

Rules that look at each number by itself need no rank that sees all: each rank gets a chunk from all, and gives back the
result, for 2(n-1)/n of a gradient, as an all-reduce does. Krum measures distances of whole gradients, so each rank
gets all: (n-1) of them.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.errors import BadInput

Robust = Callable[[Tensor, int], Tensor]
"""Of what all ranks say, [n, N], and the number of liars f: [N]."""
Attack = Callable[[Tensor, int], Tensor]
"""Of the gradients of all ranks, [n, N], and f: what the f liars say, [N]."""
Distances = Callable[[Tensor], Tensor]
"""Of what all ranks say, [n, N]: squared distances between any two, [n, n]."""


def mean(said: Tensor, liars: int) -> Tensor:
    """Of all."""
    return said.mean(0)


def median(said: Tensor, liars: int) -> Tensor:
    """The middle of each number; of an even count the mean of both."""
    ordered = said.sort(0).values
    return (ordered[(len(said) - 1) // 2] + ordered[len(said) // 2]) / 2


def trimmed_mean(said: Tensor, liars: int) -> Tensor:
    """Of each number without the f largest and the f smallest. NaN counts as largest."""
    return said.sort(0).values[liars : len(said) - liars].mean(0)


def krum(said: Tensor, liars: int) -> Tensor:
    """What that rank says that is nearest to its n - f - 2 nearest others, by the sum of squared distances."""
    return said[nearest(squared_distances(said), liars)]


def nearest(apart: Tensor, liars: int) -> Tensor:
    """Which rank that is, by squared distances [n, n]: a scalar."""
    apart = apart.nan_to_num(torch.inf, torch.inf).fill_diagonal_(torch.inf)
    return apart.sort(1).values[:, : len(apart) - liars - 2].sum(1).argmin()


def squared_distances(said: Tensor) -> Tensor:
    """Between any two of [n, N]: [n, n] in float64. Distances of parts of vectors add up to those of the whole."""
    rows = [[torch.linalg.vector_norm(a - b, dtype=torch.float64) ** 2 for b in said] for a in said]
    return torch.stack([torch.stack(row) for row in rows])


RULES: Mapping[str, Robust] = MappingProxyType(
    {"mean": mean, "median": median, "trimmed mean": trimmed_mean, "Krum": krum}
)


def sign_flip(gradients: Tensor, liars: int) -> Tensor:
    """The way back, ten times as far."""
    return -10 * gradients[liars:].mean(0)


def large(gradients: Tensor, liars: int) -> Tensor:
    """A number that no gradient has."""
    return torch.full_like(gradients[0], 1e6)


def little(gradients: Tensor, liars: int) -> Tensor:
    """A little is enough: from the mean of the honest ones z deviations down (Baruch et al. 2019, algorithm 3).

    z is as large as it can be so that enough honest ranks stand further out, which then back the lie.
    """
    n = len(gradients)
    needed = n // 2 + 1 - liars  # honest ranks that must seem to agree
    part = (n - liars - needed) / (n - liars)
    z = torch.special.ndtri(torch.tensor(max(part, 0.5), dtype=torch.float64))
    honest = gradients[liars:]
    return honest.mean(0) - float(z) * honest.std(0)


ATTACKS: Mapping[str, Attack] = MappingProxyType({"sign flip": sign_flip, "large": large, "little": little})


def combine(
    rule: Robust,
    gradient: Tensor,
    liars: int,
    communicator: Communicator,
    among: Sequence[int] | None = None,
    distances: Distances = squared_distances,
) -> Tensor:
    """What all ranks agree on, equal on each.

    Args:
        rule: by which.
        gradient: [N], as this rank says.
        liars: f, that there may be at most.
        communicator: n ranks.
        among: those that count, in order; all by default. The others say something as well, and get the result.
        distances: by which Krum chooses; where a vector has parts on other ranks, a sum over these.

    Returns:
        [N].

    Raises:
        BadInput: for more liars than the rule stands.
    """
    n = communicator.size()
    among = [*(range(n) if among is None else among)]
    require_honest(rule, len(among), liars)
    if rule is krum:
        said = gradient.new_empty(n, gradient.numel())
        communicator.all_gather(gradient.contiguous(), said)
        said = said[among]
        return said[nearest(distances(said), liars)]
    chunk = -(-gradient.numel() // n)
    padded = torch.nn.functional.pad(gradient, (0, n * chunk - gradient.numel())).view(n, chunk)
    said, result = torch.empty_like(padded), torch.empty_like(padded)
    communicator.all_to_all(padded, said)
    communicator.all_gather(rule(said[among], liars).contiguous(), result)
    return result.view(-1)[: gradient.numel()]


def robust_bytes(rule: Robust, numel: int, n: int, itemsize: int = 4) -> int:
    """What a rank sends for so many numbers."""
    return (n - 1) * numel * itemsize if rule is krum else 2 * (n - 1) * -(-numel // n) * itemsize


def require_honest(rule: Robust, n: int, liars: int, they: str = "ranks") -> None:
    """See that a rule stands so many liars among n of `they`. Raises BadInput."""
    least = {krum: 2 * liars + 3, median: 2 * liars + 1, trimmed_mean: 2 * liars + 1}.get(rule, 1)
    if liars < 0 or n < least:
        lie = f"{liars} liar{'s' * (liars != 1)} among {n} {they}"
        raise BadInput(f"{lie}: {rule.__name__.replace('_', '-')} needs {least} {they} or more")
