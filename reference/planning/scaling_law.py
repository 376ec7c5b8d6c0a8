"""Scaling laws: the loss that a model of N parameters reaches on D tokens, and the best N and D for a budget of FLOPs.

    L(N, D)  =  E  +  A / N^α  +  B / D^β

E is what no model removes; A / N^α is what a model of this size cannot express; B / D^β is what it has not seen. With
C = 6 N D FLOPs (`plain.flops_per_token` without attention), the loss is least where α A / N^α = β B / D^β:

    N  =  G (C/6)^a,    D  =  (C/6)^b / G,    a = β / (α + β),    b = α / (α + β),    G = (α A / (β B))^(1 / (α + β))

so parameters grow with the exponent of the tokens, and tokens with that of the parameters.

Hoffmann et al. 2022 ("Chinchilla", arXiv:2203.15556) found the constants in three ways. By the first two, a and b are
both near 1/2, and a token count of about 20 for each parameter is best at every budget. The third, their sec. 3.3, fits
L, and says smaller models on more tokens. Its text prints α and β with two digits; with those, the best size for
Gopher's budget is 32 billion and not the 40 billion of their figure 4. Besiroglu et al. 2024 (arXiv:2404.10102)
recovered four digits from the paper's source, fitted the same points again, and found constants that agree with the
first two ways: a = 0.51, and 17 to 26 tokens for each parameter from 10^18 to 10^25 FLOPs.

A law says what training to the best loss costs. A model that many people will use is made smaller, and trained longer.
"""

from dataclasses import dataclass

import numpy as np

from reference.errors import BadInput

from .layouts import Column

FLOPS = 6.0  # of a parameter and a token: 2 forward, 4 backward (Kaplan et al. 2020, arXiv:2001.08361, sec. 2.1)
TOKENS_FOR_EACH = 20.0  # parameter: Hoffmann et al. 2022, table 3, whose rows have 20 to 22


@dataclass(frozen=True)
class ComputeOptimal:
    """The model that a budget is best spent on; each number is a column.

    Attributes:
        flops: C.
        parameters: N.
        tokens: D.
    """

    flops: Column
    parameters: Column
    tokens: Column


@dataclass(frozen=True)
class ScalingLaw:
    """Loss of a model after training, in nats for a token, by the letters of Hoffmann et al. 2022.

    Attributes:
        E, A, B, alpha, beta: constants of a fit, above 0.
        source: whose fit.

    Raises:
        BadInput: if one of the constants is not above 0.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    source: str

    def __post_init__(self) -> None:
        if not min(self.E, self.A, self.B, self.alpha, self.beta) > 0:
            raise BadInput(f"all constants of a scaling law are above 0: {self}")

    def loss(self, parameters: Column, tokens: Column) -> Column:
        """L(N, D)."""
        return self.E + self.A / _positive(parameters) ** self.alpha + self.B / _positive(tokens) ** self.beta

    def optimum(self, flops: Column) -> ComputeOptimal:
        """The size and the tokens with the least loss for so many FLOPs (their equation 4)."""
        pairs = _positive(flops) / FLOPS
        parameters = self._balance * pairs ** (self.beta / (self.alpha + self.beta))
        return ComputeOptimal(flops, parameters, pairs / parameters)

    def tokens_of(self, parameters: Column) -> Column:
        """Of the budget at which a model of this size is the best one."""
        seen = self.beta * self.B / (self.alpha * self.A) * _positive(parameters) ** self.alpha
        return seen ** (1 / self.beta)

    def least_flops(self, loss: Column) -> Column:
        """The smallest budget that reaches this loss.

        Raises:
            BadInput: if none does: the loss is not above E.
        """
        left = np.asarray(loss, dtype=np.float64) - self.E
        if not np.all(left > 0):
            raise BadInput(f"no budget reaches a loss of {np.min(loss):g}: {self.E:g} stays, whatever is spent")
        both = self.alpha + self.beta
        at_one = self.A / self._balance**self.alpha * both / self.beta  # what is left above E with N D = 1
        return FLOPS * (at_one / left) ** (both / (self.alpha * self.beta))

    def waste(self, flops: Column, parameters: Column) -> Column:
        """How many times the FLOPs that its loss needs a model of another size takes: 1 at the best size."""
        tokens = _positive(flops) / (FLOPS * _positive(parameters))
        return flops / self.least_flops(self.loss(parameters, tokens))

    @property
    def _balance(self) -> float:
        """G."""
        return (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))


HOFFMANN = ScalingLaw(
    E=1.6934, A=406.4, B=410.7, alpha=0.3392, beta=0.2849,
    source="Hoffmann et al. 2022, approach 3, with the digits of the paper's source, after Besiroglu et al. 2024",
)  # fmt: skip
HOFFMANN_PRINTED = ScalingLaw(
    E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28,
    source="Hoffmann et al. 2022, approach 3, as appendix D.2 prints it",
)  # fmt: skip
BESIROGLU = ScalingLaw(
    E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658,
    source="Besiroglu et al. 2024, a new fit to the points of Hoffmann et al.",
)  # fmt: skip


def by_tokens_for_each(flops: Column, tokens_for_each: Column = TOKENS_FOR_EACH) -> ComputeOptimal:
    """The rule of thumb: so many tokens for each parameter, at every budget."""
    parameters = np.sqrt(_positive(flops) / (FLOPS * _positive(tokens_for_each)))
    return ComputeOptimal(flops, parameters, tokens_for_each * parameters)


def _positive(amount: Column) -> Column:
    amount = np.asarray(amount, dtype=np.float64)
    if not np.all(np.isfinite(amount) & (amount > 0)):
        raise BadInput("parameters, tokens and FLOPs are above 0 and finite")
    return amount
