"""A linear layer in 8 bits by this course and by torchao, on the same numbers. Runs in torchao's environment.

python -m tests.compression.beside_torchao      writes one line of JSON
"""

import json
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from reference.compression.low_bits import ByKernel
from reference.compression.plain_low_bits import FP8, INT8, linear, scale_of

TOKENS, INPUTS, OUTPUTS = (3, 40), 96, 64


def fp8_layer(weight: Tensor) -> nn.Module:
    """torchao's float8, with scales as ours: of each token, of the whole matrix, and none for a weight's gradient."""
    from torchao.float8 import CastConfig, Float8LinearConfig, ScalingGranularity, convert_to_float8_training
    from torchao.float8.config import ScalingType

    e4m3 = {"target_dtype": torch.float8_e4m3fn}
    row = CastConfig(scaling_granularity=ScalingGranularity.AXISWISE, **e4m3)
    off = CastConfig(scaling_type=ScalingType.DISABLED, **e4m3)
    config = Float8LinearConfig(
        cast_config_input=row,
        cast_config_input_for_grad_weight=off,
        cast_config_weight=CastConfig(**e4m3),
        cast_config_grad_output=row,
        cast_config_grad_output_for_grad_weight=off,
        round_scales_to_power_of_2=True,
        emulate=True,
    )
    return convert_to_float8_training(nn.Sequential(plain_layer(weight)), config=config)


def int8_layer(weight: Tensor) -> nn.Module:
    """torchao's int8 training: a scale for each token and each row of the matrix, by torch's product of integers."""
    from torchao.prototype.quantized_training import int8_mixed_precision_training
    from torchao.quantization import quantize_

    model = nn.Sequential(plain_layer(weight))
    quantize_(model, int8_mixed_precision_training(grad_weight=False))
    return model


def plain_layer(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(INPUTS, OUTPUTS, bias=False)
    layer.weight.data.copy_(weight)
    return layer


def through(compute: Callable[[Tensor], Tensor], weight: Callable[[], Tensor], x: Tensor, dy: Tensor) -> list[Tensor]:
    """What comes out, and the gradients of what went in and of the weight."""
    x = x.clone().requires_grad_()
    y = compute(x)
    y.backward(dy)
    return [y.detach(), x.grad, weight()]


def off_by(amax: Tensor, of_rows: Tensor) -> Tensor:
    """How far apart ours and torchao's integers for one number may be: half a step of each.

    Args:
        amax: of those that share a scale of ours.
        of_rows: of those that share one of torchao's.
    """
    return (scale_of(amax, INT8) + of_rows / INT8.largest) / 2


def bound(x: Tensor, weight: Tensor) -> Tensor:
    """How far apart ours and torchao's x Wᵀ may be, element by element."""
    largest = x.abs().amax(-1, keepdim=True)
    of_x = off_by(largest, largest)
    of_weight = off_by(weight.abs().amax(), weight.abs().amax(1)) * torch.ones_like(weight).T
    return x.abs() @ of_weight + of_x * weight.abs().sum(1) + of_x * of_weight.sum(0)


def main() -> dict[str, list[float]]:
    """Of output and both gradients: for fp8 the relative difference, for int8 the share of the bound that is used."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*TOKENS, INPUTS, generator=generator) * torch.logspace(-2, 2, TOKENS[1])[:, None]
    weight, dy = (torch.randn(*s, generator=generator) / 8 for s in ((OUTPUTS, INPUTS), (*TOKENS, OUTPUTS)))
    found = {}
    for name, numbers, layer in (("fp8", FP8, fp8_layer(weight)), ("int8", INT8, int8_layer(weight))):
        mine = weight.clone().requires_grad_()
        ours = through(lambda x, w=mine, n=numbers: linear(x, w, n), lambda w=mine: w.grad, x, dy)
        theirs = through(layer, lambda m=layer: m[0].weight.grad, x, dy)
        if name == "fp8":
            found[name] = [float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True)]
            continue
        by_kernel = weight.clone().requires_grad_()
        again = through(lambda x, w=by_kernel: ByKernel.apply(x, w, INT8), lambda w=by_kernel: w.grad, x, dy)
        found["our kernel"] = [float((a - b).norm() / b.norm()) for a, b in zip(again, ours, strict=True)]
        limits = [bound(x, weight), bound(dy, weight.T)]
        used = [float(((a - b).abs() / limit).max()) for a, b, limit in zip(ours, theirs, limits, strict=False)]
        near = [float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True)]
        found[name], found["int8, in the mean"] = used, near
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main()) + "\n")
