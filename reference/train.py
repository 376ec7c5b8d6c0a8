"""Train a GPT on N ranks: the loop, readable top to bottom.

    torchrun --nproc-per-node 4 -m reference.train          on gloo, or on NCCL where every rank has a GPU
    rankwise train --ranks 4                                the same loop on a warm cluster of this machine

This is data parallelism in its simplest form: every rank holds the whole model, reads its own part of the batch, and
before each update all ranks sum their gradients. Summing is the only thing that they ever say to each other, and it
is an argument: later chapters hand in better ways.

One rule makes N ranks equal to one: each rank divides the sum of its token losses by the number of tokens of *all*
ranks, before backward. Parts of the loss and of the gradients then add up, whatever the layout.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.errors import BadInput
from reference.models import GPT, PRESETS, GPTConfig, create, token_loss
from reference.models.data import Batches, file_text, python_text
from reference.report import Report, Step, silent

AllReduce = Callable[[Tensor, dist.ProcessGroup], None]
ReduceGradients = Callable[[Iterable[nn.Parameter], dist.ProcessGroup], None]


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what is learned. The number of ranks is not part of it: it changes nothing."""

    model: GPTConfig = PRESETS["demo"]
    data: str | None = None  # a file of text; Python's own documentation by default
    steps: int = 300
    stop_after: int | None = None  # take only the first steps of those planned
    batch: int = 16  # windows in a step, of all ranks together
    sequence: int = 128  # tokens in a window
    learning_rate: float = 3e-3  # at its peak
    warmup: int = 20  # steps until the peak
    weight_decay: float = 0.1
    clip: float = 1.0  # the gradient's norm is scaled down to this
    seed: int = 0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise BadInput(f"training takes at least 1 step, not {self.steps}")
        if not 0 < self.learning_rate < math.inf:
            raise BadInput(f"a learning rate is a positive number, not {self.learning_rate}")
        if self.seed < 0:
            raise BadInput(f"a seed is 0 or more, not {self.seed}")
        if self.model.vocabulary != 256:
            raise BadInput(f"tokens are bytes here, and this model has a vocabulary of {self.model.vocabulary:,}")


def native(x: Tensor, group: dist.ProcessGroup) -> None:
    """Sum `x` over `group`, in place, by the backend's own all-reduce."""
    dist.all_reduce(x, group=group)


def all_reduce_gradients(
    parameters: Iterable[nn.Parameter], group: dist.ProcessGroup, all_reduce: AllReduce = native
) -> None:
    """Sum every gradient over `group`, in place: all of them in one flat buffer, in one all-reduce.

    Around a ring a rank sends 2(n-1)/n times the bytes of all gradients, in 2(n-1) steps. Simple, and wasteful: the
    buffer is a second copy of the gradients, and nothing is sent before the last of them is known.

    Args:
        parameters: of the same shapes in the same order on every rank, each with a gradient.
        group: n ranks.
        all_reduce: how to sum the buffer; one of `reference.collectives.all_reduce`, for example.
    """
    gradients = [parameter.grad for parameter in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce(flat, group)
    for gradient, whole in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(whole.view_as(gradient))


def train(
    config: TrainConfig,
    group: dist.ProcessGroup,
    device: torch.device,
    reduce_gradients: ReduceGradients = all_reduce_gradients,
    report: Report = silent,
) -> GPT:
    """Train on the ranks of `group`, which all call this with the same `config`.

    Args:
        config: what to learn.
        group: n ranks that share each batch; one rank is as good as many.
        device: where this rank computes.
        reduce_gradients: makes each rank's gradients those of the whole batch; one all-reduce by default.
        report: told of every step.

    Returns:
        The model: bitwise the same on every rank.

    Raises:
        BadInput: if text, batch and ranks do not fit.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    batches = batches_for(config, world_size)
    model = create(GPT, config.model, config.seed, device, config.dtype)
    optimizer = optimizer_for(config, model)

    began = time.perf_counter()
    for step in range(config.stop_after or config.steps):
        tokens, targets = (x.to(device) for x in batches.of_step(step, rank, world_size))
        loss = token_loss(model(tokens), targets, batches.tokens)
        loss.backward()
        reduce_gradients(model.parameters(), group)
        gradient_norm = update(config, step, model, optimizer)

        seconds = time.perf_counter() - began
        whole_loss = summed(loss.detach(), group)
        report(Step(step + 1, whole_loss, gradient_norm, (step + 1) * batches.tokens, seconds))
    return model


def batches_for(config: TrainConfig, world_size: int) -> Batches:
    """The data of a run.

    Raises:
        BadInput: if the file cannot be used, the text is too short, or the batch does not divide among the ranks.
    """
    if config.batch % world_size:
        raise BadInput(f"a batch of {config.batch} windows does not divide among {world_size} ranks")
    text = python_text() if config.data is None else file_text(config.data)
    return Batches.of(text, config.sequence, config.batch, config.seed)


def optimizer_for(config: TrainConfig, model: nn.Module) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019), with the second moment forgotten faster, as language models like it."""
    return torch.optim.AdamW(
        model.parameters(), config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )


def learning_rate(config: TrainConfig, step: int) -> float:
    """Up in a line for `warmup` steps, then down along a cosine to a tenth. `step` counts from 0."""
    warmth = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return config.learning_rate * warmth * (0.55 + 0.45 * math.cos(math.pi * step / config.steps))


def update(config: TrainConfig, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Clip the gradients, take an optimizer step, forget the gradients.

    Returns:
        The norm of all gradients before clipping.
    """
    gradient_norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
    for parameters in optimizer.param_groups:
        parameters["lr"] = learning_rate(config, step)
    optimizer.step()
    optimizer.zero_grad()
    return float(gradient_norm)


def summed(x: Tensor, group: dist.ProcessGroup) -> float:
    """The sum of everybody's scalar `x`."""
    whole = x.clone()
    dist.all_reduce(whole, group=group)
    return float(whole)


@torch.no_grad()
def validation_loss(config: TrainConfig, model: nn.Module, group: dist.ProcessGroup, device: torch.device) -> float:
    """Nats per token of the held-out text, which the ranks of `group` read together."""
    batches = batches_for(config, dist.get_world_size(group))
    tokens_of_all = len(batches.held_out) * batches.sequence
    part = torch.zeros((), dtype=torch.float64, device=device)
    for tokens, targets in batches.validation(dist.get_rank(group), dist.get_world_size(group)):
        part += token_loss(model(tokens.to(device)), targets.to(device), tokens_of_all)
    return summed(part, group)


if __name__ == "__main__":
    import sys

    from reference.launch import main

    sys.exit(main())
