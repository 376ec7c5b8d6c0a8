"""Dropout that does not depend on the layout: what is dropped follows from the token, not from the rank that holds it.

Drawing masks from one stream of random numbers drops other elements with other numbers of ranks: a rank that reads
half of the tokens, or holds half of the features, draws half of the numbers. Here no number is drawn from anywhere.
Each one has a name, and is computed from it:

    run      stream `seed`;    number `step` of it  begins a stream of the step
    step     its number `place`, of a token in the text,  begins a stream of the token: its seed
    token    its number `site`, of a dropout in the model,  begins a stream for one vector of features
    vector   its number f decides whether feature f is kept

So any rank can look up any number, in any order, and finds what one process finds. What backward runs again drops the
same elements again, and a checkpoint has no random state to save.

A stream is that of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"), whose
numbers need not be computed one after the other. For each element that takes two multiplications and three shifts of
64 bits, and 16 bytes while they are made; 1 byte waits for backward. On one core of a CPU the whole dropout takes 1 to
1.7 times as long as torch's own. A GPU would move some 220 bytes for each element, operation by operation; so there the
numbers are made and compared in one kernel, which writes 1.

Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting". Numbers that are found and
not drawn: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

import torch
from torch import Tensor, nn

from reference.models.one_kernel import one_kernel


def dropout(x: Tensor, probability: float, seeds: Tensor, site: int, first: int = 0) -> Tensor:
    """Set some elements to zero, and scale the others so that each keeps its expectation.

    Autograd keeps which were dropped: a bool for each element, and nothing else.

    Args:
        x: [..., F], of any floating dtype.
        probability: p of an element to be dropped, 0 <= p < 1; the others are multiplied by 1 / (1 - p).
        seeds: [...] of int64, one number for each token, as `token_seeds` makes them.
        site: which dropout of the model this is.
        first: index of x's first feature in the whole, where x is features [first, first + F) of more.

    Returns:
        [..., F].
    """
    return (x * (1 / (1 - probability))).masked_fill_(dropped(probability, seeds, site, first, x.shape[-1]), 0.0)


class Dropout(nn.Module):
    """Leave out some of what is added to the residual stream; which, follows from the seed of each token.

    Args:
        probability: of an element to be left out.
        site: which dropout of the model this is.
    """

    def __init__(self, probability: float, site: int) -> None:
        super().__init__()
        self.probability, self.site = probability, site

    def forward(self, x: Tensor, seeds: Tensor | None) -> Tensor:
        """[B, S, D] and [B, S] of int64 -> [B, S, D]; without seeds, x as it is."""
        if seeds is None or self.probability == 0:
            return x
        return dropout(x, self.probability, seeds, self.site)


def dropped(probability: float, seeds: Tensor, site: int, first: int, features: int) -> Tensor:
    """Which elements `dropout` sets to zero: [..., F] of bool.

    Arguments as for `dropout`; `features` is F.
    """
    vectors = number(seeds, site)[..., None]
    bound = int(probability * 2**64) - 2**63  # int64 begins at -2^63: a share p of all numbers is less
    return _less(vectors, torch.arange(first, first + features, device=seeds.device), bound)


@one_kernel
def _less(streams: Tensor, indices: Tensor, bound: int) -> Tensor:
    """Which numbers are below the bound: [..., 1] and [F], both of int64 -> [..., F] of bool."""
    return number(streams, indices) < bound


def token_seeds(seed: int, step: int, places: Tensor) -> Tensor:
    """The number from which all dropout of a token follows, in one step of a run.

    Args:
        seed: of the run.
        step: of the run, counted from 0.
        places: [...] of int64, where each token stands in the text.

    Returns:
        [...] of int64.
    """
    return number(number(places.new_full((), _wrapped(seed)), step), places)


def number(stream: Tensor, index: Tensor | int) -> Tensor:
    """Number `index` of a splitmix64 stream: the finaliser's mix of `stream` + (index + 1) · gamma, modulo 2^64.

    Args:
        stream: int64, of any shape: where streams begin.
        index: int64, of a shape that goes with it: which number of each, from 0 on.

    Returns:
        int64 of the shape of both: 64 random bits each.
    """
    strides = _wrapped((index + 1) * GAMMA) if isinstance(index, int) else (index + 1) * GAMMA
    z = stream + strides
    z ^= _shifted(z, 30)
    z *= FACTORS[0]
    z ^= _shifted(z, 27)
    z *= FACTORS[1]
    z ^= _shifted(z, 31)
    return z


def _shifted(z: Tensor, by: int) -> Tensor:
    """A shift to the right that brings in zeros. That of int64 brings in copies of the sign, which are masked."""
    return (z >> by).bitwise_and_((1 << 64 - by) - 1)


def _wrapped(value: int) -> int:
    """The int64 that is equal to `value` modulo 2^64."""
    return (value + 2**63) % 2**64 - 2**63


GAMMA = _wrapped(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: multiples of it lie far apart
FACTORS = _wrapped(0xBF58476D1CE4E5B9), _wrapped(0x94D049BB133111EB)  # Stafford's "Mix13"
