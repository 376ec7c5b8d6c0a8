"""The oracle: the same training in one process, without a word of `torch.distributed`.

Whatever is spread over ranks must give its losses, its gradients and its parameters. In float64 the order of additions
is all that differs, and that costs about 1e-15 at each step; a forgotten gradient, a wrong scale or a token read
twice costs at least 1e-3. So a bound of 1e-10 tells them apart without an argument about rounding.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.models import GPT, create, token_loss
from reference.train import (
    ReduceGradients,
    TrainConfig,
    all_reduce_gradients,
    batches_for,
    optimizer_for,
    train,
    update,
)


@dataclass(frozen=True)
class Record:
    """What a run went through, by the names of the whole model's parameters."""

    losses: list[float]  # of every step, in nats per token
    gradient_norms: list[float]  # of every step
    gradients: dict[str, Tensor]  # of the last step, summed over ranks, before clipping
    parameters: dict[str, Tensor]  # after the last step


def one_process(config: TrainConfig) -> Record:
    """Train alone: one process reads every batch whole."""
    batches = batches_for(config, world_size=1)
    model = create(GPT, config.model, config.seed, dtype=config.dtype)
    optimizer = optimizer_for(config, model)
    losses, norms, gradients = [], [], {}
    for step in range(config.stop_after or config.steps):
        tokens, targets = batches.of_step(step)
        loss = token_loss(model(tokens), targets, batches.tokens)
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        norms.append(update(config, step, model, optimizer))
        losses.append(loss.item())
    return Record(losses, norms, gradients, _values(model))


def on_ranks(
    config: TrainConfig,
    group: dist.ProcessGroup,
    device: torch.device | str = "cpu",
    reduce_gradients: ReduceGradients = all_reduce_gradients,
) -> Record:
    """Train on the ranks of `group` by `reference.train`, and keep what `one_process` keeps."""
    steps, last = [], []

    def reduce_and_keep(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
        parameters = list(parameters)
        reduce_gradients(parameters, group)
        last[:] = [p.grad.cpu().clone() for p in parameters]

    model = train(config, group, torch.device(device), reduce_and_keep, steps.append)
    names = [name for name, _ in model.named_parameters()]
    norms = [step.gradient_norm for step in steps]
    return Record([step.loss for step in steps], norms, dict(zip(names, last, strict=True)), _values(model))


def largest_difference(mine: Record, oracle: Record) -> dict[str, float]:
    """How far `mine` is from `oracle`, for each kind of number that they hold.

    Returns:
        `relative_difference`, of the worst tensor where there are several.
    """
    return {
        "losses": relative_difference(mine.losses, oracle.losses),
        "gradient norms": relative_difference(mine.gradient_norms, oracle.gradient_norms),
        "gradients": _worst(mine.gradients, oracle.gradients),
        "parameters": _worst(mine.parameters, oracle.parameters),
    }


def relative_difference(mine: Tensor | list[float], oracle: Tensor | list[float]) -> float:
    """The largest absolute difference over the largest absolute value of `oracle`; infinite if a NaN is among them."""
    mine, oracle = (torch.as_tensor(x, dtype=torch.float64) for x in (mine, oracle))
    difference = float((mine - oracle).abs().max() / oracle.abs().max())
    return difference if difference == difference else float("inf")


def _values(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().cpu().clone() for name, p in model.named_parameters()}


def _worst(mine: dict[str, Tensor], oracle: dict[str, Tensor]) -> float:
    if mine.keys() != oracle.keys():
        raise ValueError(f"not the same parameters: {sorted(mine.keys() ^ oracle.keys())}")
    return max(relative_difference(mine[name], oracle[name]) for name in oracle)
