"""A problem whose best answer is known: least squares, with examples that are dealt to ranks or drawn by steps."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from ..draws import generator_of


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """Half the mean squared error of `features @ weights` against `targets`.

    Attributes:
        features: [M, N] in float64.
        targets: [M].
        batch: examples of a gradient.
    """

    features: Tensor
    targets: Tensor
    batch: int

    @classmethod
    def drawn(cls, size: int, examples: int, batch: int = 8, noise: float = 0.1, seed: int = 0) -> Self:
        """Normally distributed features, N = size, and targets that follow from them but for noise."""
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(examples, size, dtype=torch.float64, generator=generator)
        weights = torch.randn(size, dtype=torch.float64, generator=generator)
        targets = features @ weights + noise * torch.randn(examples, dtype=torch.float64, generator=generator)
        return cls(features, targets, batch)

    @property
    def size(self) -> int:
        """N."""
        return self.features.shape[1]

    def gradient(self, worker: int, step: int, weights: Tensor) -> Tensor:
        """Of the examples that a worker reads in a step: [N]. The same whenever it is asked again."""
        rows = torch.randint(len(self.features), (self.batch,), generator=generator_of(worker, step))
        features = self.features[rows]
        return features.T @ (features @ weights - self.targets[rows]) / self.batch

    def of_part(self, part: int, parts: int, weights: Tensor) -> Tensor:
        """The gradient of one of so many parts, with all its examples: [N]."""
        features, targets = self.features.tensor_split(parts)[part], self.targets.tensor_split(parts)[part]
        return features.T @ (features @ weights - targets) / len(features)

    def loss(self, weights: Tensor) -> float:
        """Over all examples."""
        return float((self.features @ weights - self.targets).square().mean() / 2)

    @cached_property
    def best(self) -> float:
        """The least loss that there is."""
        return self.loss(torch.linalg.lstsq(self.features, self.targets).solution)
