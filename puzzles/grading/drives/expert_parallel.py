"""Drives of the chapter `expert_parallel`: they give experts to a learner's function, and look at what these get."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import there_and_back

ROWS, COUNTS, CALLS = "rows that experts get", "how many each expert gets", "calls of experts"


def with_experts(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """As `there_and_back`; give it `compute`, experts of which each multiplies by its own of the argument `matrices`.

    Compare what that is called with, too, and how often.
    """
    matrices, given = arguments.pop("matrices"), []

    def compute(rows: Tensor, counts: Sequence[int]) -> Tensor:
        given.append((rows.detach().clone(), list(counts)))
        parts = zip(rows.split(list(counts)), matrices, strict=True)
        return torch.cat([part @ matrix.T for part, matrix in parts])

    found = there_and_back(lambda **rest: function(**rest, compute=compute), arguments)
    rows, counts = given[0] if given else (None, None)
    return {CALLS: len(given), COUNTS: counts, ROWS: rows, **found}
