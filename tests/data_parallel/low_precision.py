"""How far low precision may be from the oracle, and why.

Two bounds for each. A loose one against one process in float64: what rounding does to this model, see `ROUNDING`. And a
tight one against one process that rounds in the same places, since it goes through the same micro-batches in the same
precision: the sum over ranks and micro-batches, in float32, is all that may differ.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from torch import Tensor

from reference.cluster import Cluster
from reference.data_parallel.gradient_sync import trainable
from reference.memory.precision import PRECISIONS, Precision

from .conftest import records
from .training import Case, Record, differences, one_process, same_bits

RANKS, MICRO_BATCHES = 3, 2

ROUNDING: Mapping[str, float] = MappingProxyType({"fp32": 2**-24, "bf16": 2**-8, "fp16": 2**-11})
"""Relative error of one rounding to nearest: half of the last bit, of 24, 8 and 11."""

ADD_UP: Mapping[str, int] = MappingProxyType({"loss": 1, "norm": 4, "output": 8, "parameter": 8, "gradient": 32})
"""How many of them may add up, by what is written down. A loss is a mean over tokens, of errors with either sign; an
output has passed about 20 matrix products, norms and sums, whose errors add up like a random walk; a gradient passes
them twice, and adds up tokens that nearly cancel. Each is about twice what was measured."""

SCALE = 2.0**10  # of the loss in fp16: gradients of 1e-5 would otherwise lose bits

SAME_ROUNDINGS = 1e-6
"""Relative error of a sum of six numbers in float32, in another order: about five roundings of 2^-24."""


def prove_low_precision(ranks: Cluster, case: Case) -> None:
    """`case`, in its precision, is as near to float64 as its roundings allow; its first sum is exact.

    The optimizer is SGD: a step is then as exact as its gradient. Adam divides a gradient by its own size, and so makes
    a whole step out of a rounding error where the true gradient is zero.
    """
    scale = SCALE if case.precision == "fp16" else 1.0
    case = replace(case, optimizer="SGD", micro_batches=MICRO_BATCHES, scale=scale)
    one_step = replace(case, steps=1)
    found, first = records(ranks, RANKS, [case, one_step])
    oracle = one_process(case.task, "SGD", RANKS * MICRO_BATCHES)
    assert all(same_bits(record, found[0]) for record in found)
    bounds = {name: ADD_UP[name.split()[0]] * ROUNDING[case.precision] for name in oracle}
    assert too_far(found[0], oracle, bounds) == {}
    in_the_same_places = one_process_in(one_step)
    sums = {name: value for name, value in first[0].items() if name in in_the_same_places}
    assert too_far(sums, in_the_same_places, dict.fromkeys(in_the_same_places, SAME_ROUNDINGS)) == {}


def too_far(mine: Record, oracle: Mapping[str, Tensor], bounds: Mapping[str, float]) -> dict[str, float]:
    """What is farther than its bound from the oracle."""
    return {name: value for name, value in differences(mine, oracle).items() if not value <= bounds[name]}


def one_process_in(case: Case) -> Record:
    """One step in one process and the precision of `case`: gradients of the same micro-batches, added in float32."""
    precision: Precision = PRECISIONS[case.precision]
    model, parts = case.task.model(precision.compute), RANKS * MICRO_BATCHES
    sums: dict[str, Tensor] = {}
    for part in range(parts):
        (case.task.loss(model, 0, part, parts) * case.scale).backward()
        for name, parameter in trainable(model.named_parameters()).items():
            gradient = parameter.grad.to(precision.gradients)
            sums[name] = sums[name] + gradient if name in sums else gradient
            parameter.grad = None
    return {f"gradient of {name}": (gradient / case.scale).double() for name, gradient in sums.items()}
