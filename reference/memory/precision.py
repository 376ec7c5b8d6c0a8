"""Mixed precision: compute in few bits, remember in many (Micikevicius et al. 2018, "Mixed precision training").

| name | compute | gradients | master | loss scaling |
|------|---------|-----------|--------|--------------|
| fp64 | fp64    | fp64      | fp64   | no           |
| fp32 | fp32    | fp32      | fp32   | no           |
| bf16 | bf16    | fp32      | fp32   | no           |
| fp16 | fp16    | fp32      | fp32   | dynamic      |

Matrix products in 16 bits are fast, and their inputs are half as large. Sums are another matter: a number that is added to
one 256 times as large vanishes in bf16 (8 bits of it are kept). An update is about a thousandth of its weight, and a
micro-batch's gradient about 1/K of the sum: both would be lost, bit by bit, without any error. So weights have a
master copy in fp32, which the optimizer updates, and gradients are added up in fp32.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch


@dataclass(frozen=True)
class Precision:
    """In which dtypes a model is trained."""

    compute: torch.dtype  # of working parameters and activations
    gradients: torch.dtype  # in which gradients are added up and travel
    master: torch.dtype  # of what the optimizer updates, and of its state
    scaled: bool = False  # the loss is scaled up before backward, as much as gradients in `compute` can take


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "fp32": Precision(torch.float32, torch.float32, torch.float32),
        "bf16": Precision(torch.bfloat16, torch.float32, torch.float32),
        "fp16": Precision(torch.float16, torch.float32, torch.float32, scaled=True),
        "fp64": Precision(torch.float64, torch.float64, torch.float64),  # for exact tests
    }
)
