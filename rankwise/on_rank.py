"""What the commands run on every rank."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives.compat import computes_on_gpus
from reference.data_parallel import gather_full
from reference.errors import BadInput
from reference.oracle import Record, on_ranks
from reference.parallelize import DEFAULT_PLAN, Plan
from reference.report import logger, silent
from reference.resilience.preemption import Preempted
from reference.saves import Saves
from reference.train import TrainConfig, Training, validation_loss
from reference.train import train as train_on_group


@dataclass(frozen=True)
class Outcome:
    """What a rank hands back after training."""

    validation_loss: float  # nats per byte of the held-out text
    fingerprint: str  # of all parameters, bit by bit
    parameters: dict[str, Tensor] | None  # rank 0's, on the CPU
    told: tuple[str, ...] = ()  # what else a person should know: each spike of the loss, what is spent of privacy


def train_or_refuse(config: TrainConfig, log: Path, plan: Plan, saves: Saves | None) -> Outcome | BadInput | Preempted:
    """As `train`; what cannot work, or was told to stop, comes back as a value, which the owner may raise."""
    try:
        return train(config, log, plan, saves)
    except (BadInput, Preempted) as error:
        return error


def train(config: TrainConfig, log: Path, plan: Plan = DEFAULT_PLAN, saves: Saves | None = None) -> Outcome:
    """Train on the world group; rank 0 appends every step to `log`."""
    first = dist.get_rank() == 0
    training = train_on_group(config, dist.group.WORLD, own_device(), plan, logger(log) if first else silent, saves)
    parameters = gather_full(training.form)
    return Outcome(
        validation_loss(training), fingerprint(parameters), parameters if first else None, tuple(training.told())
    )


def record(config: TrainConfig, plan: Plan = DEFAULT_PLAN) -> Record:
    """Train on the world group, and keep what the oracle keeps."""
    return on_ranks(config, dist.group.WORLD, own_device(), plan)


def step_apart(config: TrainConfig, plan: Plan) -> None:
    """Take two steps, which tell shapes and warm up; and after a barrier a third, to be traced."""
    training = Training(config, dist.group.WORLD, own_device(), plan)
    for step in range(3):
        if step == 2:
            dist.barrier()
        training.backward(step)
        training.update(step)


def own_device() -> torch.device:
    """The GPU that the cluster gave to this rank, else the CPU."""
    if computes_on_gpus(dist.group.WORLD):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def fingerprint(parameters: dict[str, Tensor]) -> str:
    """A hash of names and bits."""
    digest = hashlib.sha256()
    for name, parameter in parameters.items():
        digest.update(name.encode())
        digest.update(parameter.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
