"""Small runs that several tests of this folder share."""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives.default import Communicate, over
from reference.config import TrainConfig
from reference.data_parallel.initial import fingerprint
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS
from reference.parallelize import Plan
from reference.train import Training

CONFIG = TrainConfig(PRESETS["tiny"], steps=8, batch=12, sequence=16, warmup=2)
EXACT = replace(CONFIG, precision=PRECISIONS["fp64"])
CPU = torch.device("cpu")
INTEGER = {4: torch.int32, 8: torch.int64}
BITS = {"sign": 31, "exponent": 27, "mantissa": 3}  # of a float32


def training_of(plan: Plan, config: TrainConfig = CONFIG, communicate: Communicate = over) -> Training:
    """On all ranks of the cluster."""
    return Training(config, dist.group.WORLD, CPU, plan, communicate)


@torch.no_grad()
def flip(x: Tensor, bit: int, place: int = 0) -> None:
    """Flip a bit of an element, in place."""
    bits = x.detach().view(-1).view(INTEGER[x.element_size()])
    value = 1 << bit
    bits[place] ^= value - (1 << 8 * x.element_size()) if bit == 8 * x.element_size() - 1 else value


def state_of(training: Training) -> int:
    """64 bits of all masters and moments of this rank."""
    found = []
    for part in training.form.parts:
        found.append(fingerprint(part.master.detach()))
        found += [fingerprint(x) for x in training.optimizer.state.get(part.master, {}).values()]
    return int(fingerprint(torch.stack(found)))
