"""The oracle: the same training in one process, without a word of `torch.distributed`.

Whatever is spread over ranks must give its losses, its gradients and its parameters. In float64 the order of additions
is all that differs, and that costs about 1e-15 at each step; a forgotten gradient, a wrong scale or a token read
twice costs at least 1e-3. So a bound of 1e-10 tells them apart without an argument about rounding.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.collectives.default import Communicate, over
from reference.config import TrainConfig, learning_rate
from reference.data_parallel import gather_full
from reference.models import architecture, create, token_loss
from reference.parallelize import DEFAULT_PLAN, Plan
from reference.train import Training, batches_for, summed


@dataclass(frozen=True)
class Record:
    """What a run went through, by the names of the whole model's parameters."""

    losses: list[float]  # of every step, in nats per token
    gradient_norms: list[float]  # of every step
    gradients: dict[str, Tensor]  # of the last step, summed over ranks, before clipping
    parameters: dict[str, Tensor]  # after the last step


def one_process(config: TrainConfig) -> Record:
    """Train alone, in `config.precision.master`: one process reads every batch whole."""
    batches = batches_for(config, world_size=1)
    model = create(architecture, config.model, config.seed, dtype=config.precision.master)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=config.weight_decay)
    losses, norms, gradients = [], [], {}
    for step in range(config.stop_after or config.steps):
        tokens, targets = batches.of_step(step)
        dropout_seeds = batches.dropout_seeds(step) if config.model.dropout > 0 else None
        loss = token_loss(model(tokens, dropout_seeds=dropout_seeds), targets, batches.tokens)
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), config.clip)))
        optimizer.param_groups[0]["lr"] = learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Record(losses, norms, gradients, {name: p.detach().clone() for name, p in model.named_parameters()})


def on_ranks(
    config: TrainConfig,
    group: dist.ProcessGroup,
    device: torch.device | str = "cpu",
    plan: Plan = DEFAULT_PLAN,
    communicate: Communicate = over,
) -> Record:
    """Train on the ranks of `group` as `reference.train` does, and keep what `one_process` keeps."""
    training = Training(config, group, torch.device(device), plan, communicate)
    losses, norms, gradients = [], [], {}
    last = (config.stop_after or config.steps) - 1
    for step in range(last + 1):
        losses.append(summed(training.backward(step), training.loss_group))
        if step == last:
            gradients = gather_full(training.form, lambda part: part.master.grad)
        norms.append(training.update(step))
    return Record(losses, norms, gradients, gather_full(training.form))


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
    if torch.equal(mine, oracle):  # all zeros, too
        return 0.0
    difference = float((mine - oracle).abs().max() / oracle.abs().max())
    return difference if difference == difference else float("inf")


def _worst(mine: dict[str, Tensor], oracle: dict[str, Tensor]) -> float:
    if mine.keys() != oracle.keys():
        raise ValueError(f"not the same parameters: {sorted(mine.keys() ^ oracle.keys())}")
    return max(relative_difference(mine[name], oracle[name]) for name in oracle)
