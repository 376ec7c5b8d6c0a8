"""A budget: the GPU-hours, days, money and energy that a training takes, and the FLOPs that money buys.

    GPU-hours  =  n · tokens / (tokens per second · goodput) / 3600        days   =  GPU-hours / 24 n
    money      =  GPU-hours · price                                        energy =  GPU-hours · watts · overhead

Tokens per second are a prediction's (`predict.predict`) or a measurement's, while training runs; what failures and
checkpoints take is `goodput.goodput`'s. A GPU under load draws about what its data sheet allows it. The rest of the
data centre draws more on top of that: hosts, network, and cooling.
"""

import csv
from dataclasses import dataclass
from functools import cache

import numpy as np

from reference.errors import BadInput

from .failures import DAY, HOUR
from .hardware import DATA, Gpu
from .layouts import Column


@dataclass(frozen=True)
class Bill:
    """What a training takes; each number is a column.

    Attributes:
        gpu_hours: of all GPUs together.
        days: from its first step to its last.
        money: in the unit of the price.
        megawatt_hours: of the data centre.
    """

    gpu_hours: Column
    days: Column
    money: Column
    megawatt_hours: Column


def bill(
    tokens: Column,
    tokens_per_second: Column,
    gpus: Column,
    *,
    price: Column,
    watts: Column,
    goodput: Column = 1.0,
    overhead: Column = 1.0,
) -> Bill:
    """What training on so many tokens takes.

    Args:
        tokens: of the training.
        tokens_per_second: of all GPUs together, as long as nothing fails.
        gpus: n.
        price: of a GPU-hour.
        watts: of a GPU under load: `board_watts`.
        goodput: the useful part of the time, above 0 and at most 1: `Goodput.useful`.
        overhead: watts of the data centre for each watt of a GPU, at least 1.

    Raises:
        BadInput: if a number is not above 0, or the last two are out of their bounds.
    """
    for number in (tokens, tokens_per_second, gpus, price, watts, goodput):
        if not np.all(np.greater(number, 0)):
            raise BadInput("tokens, tokens per second, GPUs, price, watts and goodput are above 0")
    if not (np.all(np.less_equal(goodput, 1)) and np.all(np.greater_equal(overhead, 1))):
        raise BadInput("the goodput is a part of the time, at most 1; the overhead counts the GPU, too: at least 1")
    seconds = np.divide(tokens, tokens_per_second) / goodput
    hours = seconds / HOUR * gpus
    return Bill(hours, seconds / DAY, hours * price, hours * watts * overhead / 1e6)


def affordable_flops(money: Column, price: Column, flops_per_second: Column, goodput: Column = 1.0) -> Column:
    """FLOPs that money buys: what `ScalingLaw.optimum` takes.

    Args:
        money: in the unit of the price.
        price: of a GPU-hour.
        flops_per_second: of a GPU, while it trains: its peak times MFU.
        goodput: the useful part of the time.

    Raises:
        BadInput: if the price is not above 0.
    """
    if not np.all(np.greater(price, 0)):
        raise BadInput("a GPU-hour has a price above 0, or no amount of money says how many")
    return np.divide(money, price) * HOUR * flops_per_second * goodput


@cache
def _watts() -> dict[str, float]:
    with (DATA / "hardware.csv").open(newline="") as file:
        return {row["gpu"]: float(row["tdp_w"]) for row in csv.DictReader(file)}


def board_watts(gpu: Gpu) -> float:
    """Watts that the data sheet allows a GPU, of `data/hardware.csv`.

    Raises:
        BadInput: if the table does not have it.
    """
    if gpu.name not in _watts():
        raise BadInput(f"the table has no watts of {gpu.name!r}: give its own, it has those of {', '.join(_watts())}")
    return _watts()[gpu.name]
