"""Why a rank remembers: without it, few elements or few bits stop somewhere else, however long one goes on."""

import pytest
import torch
from torch import Tensor

from reference.compression import plain_memory

TARGET = torch.tensor([1.0, 0.1, -0.1, 0.01], dtype=torch.float64)
PULLS = torch.tensor([[1, 3, 0, 0], [-3, -1.5, 0, 0], [2, -1.5, 0, 0]], dtype=torch.float64)
"""Three ranks pull two elements to different sides, more than any other element needs; together they do not pull."""


def distance(compressed: object, remembers: bool, steps: int = 3000) -> float:
    """How far the ranks end from what all want, by descent with steps that become smaller."""
    x, residuals = torch.zeros_like(TARGET), [torch.zeros_like(TARGET) for _ in PULLS]
    for step in range(steps):
        gradients = [(x - TARGET) + pull for pull in PULLS]
        total = plain_memory.sum_with_feedback(gradients, residuals, compressed)
        if not remembers:
            for residual in residuals:
                residual.zero_()
        x = x - 0.1 / (1 + step / 100) * total / len(PULLS)
    return float((x - TARGET).norm() / TARGET.norm())


def largest(x: Tensor) -> Tensor:
    return plain_memory.top_k(x, 1)


@pytest.mark.parametrize("compressed", [largest, plain_memory.scaled_signs], ids=["top-k", "signs"])
def test_with_feedback_it_arrives_and_without_it_does_not(compressed: object) -> None:
    """Without, top-k sends pulls and nothing else, and what most ranks say is not what all need."""
    assert distance(compressed, remembers=True) < 0.02
    assert distance(compressed, remembers=False) > 0.1
