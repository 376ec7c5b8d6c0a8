"""Which optimizer a run has: the one place where their names meet what makes them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from reference.choices import Optimizer
from reference.collectives.communicator import Communicator
from reference.compression.by_chance import ByChanceAdamW
from reference.compression.eight_bit_adam import EightBitAdamW
from reference.compression.one_bit_adam import OneBitAdam, OneBitLamb, ZeroOneAdam
from reference.config import TrainConfig
from reference.data_parallel import GradientSync
from reference.errors import BadInput
from reference.memory.offload import Offload, OffloadedOptimizer, offload_target
from reference.parallelize import Plan
from reference.zero.whole_matrices import MatrixRule, Muon, Shampoo, Soap, WholeMatrices


def optimizer_for(config: TrainConfig, plan: Plan, form: GradientSync, everyone: Communicator) -> torch.optim.Optimizer:
    """The optimizer that a run has chosen, over the masters of a form. All ranks call this together.

    Args:
        config, plan: of the run.
        form: whose parts to update.
        everyone: all ranks of the plan.

    Raises:
        BadInput: if the plan has no room for it.
    """
    options = {"lr": config.learning_rate, "betas": (0.9, 0.95), "weight_decay": config.weight_decay}
    exact = {"freeze_after": config.exact_steps}
    make = {
        Optimizer.ADAMW: _adamw,
        Optimizer.ADAMW_8_BIT: _adamw,
        Optimizer.MUON: partial(_whole_matrices, Muon(config.precision.compute)),
        Optimizer.SHAMPOO: partial(_whole_matrices, Shampoo()),
        Optimizer.SOAP: partial(_whole_matrices, Soap()),
        Optimizer.SGD: partial(_in_memory, without_betas(torch.optim.SGD)),
        Optimizer.ONE_BIT_ADAM: partial(_in_memory, partial(OneBitAdam, **exact)),
        Optimizer.ZERO_ONE_ADAM: partial(_in_memory, ZeroOneAdam),
        Optimizer.ONE_BIT_LAMB: partial(_in_memory, partial(OneBitLamb, **exact)),
    }
    return make[config.optimizer](config, plan, form, everyone, options)


def _adamw(
    config: TrainConfig, plan: Plan, form: GradientSync, everyone: Communicator, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), with beta_2 = 0.95, as usual for language models."""
    if config.optimizer is Optimizer.ADAMW_8_BIT or config.precision.by_chance:
        require_beside(config, plan)
        if config.optimizer is Optimizer.ADAMW:
            return ByChanceAdamW(form.parts, options, config.seed)
        return EightBitAdamW(form.parts, options, config.seed, everyone)
    if plan.offload is Offload.NONE:
        return torch.optim.AdamW(masters_of(form), fused=True, **options)  # one pass over memory, not one an operation
    target = offload_target(plan.offload, plan.offload_folder)
    return OffloadedOptimizer(torch.optim.AdamW, masters_of(form), target, **options)


def _in_memory(
    make: Callable[..., torch.optim.Optimizer],
    config: TrainConfig,
    plan: Plan,
    form: GradientSync,
    everyone: Communicator,
    options: Mapping[str, Any],
) -> torch.optim.Optimizer:
    """An optimizer whose state stays beside the model."""
    require_beside(config, plan)
    return make(masters_of(form), **options)


def require_beside(config: TrainConfig, plan: Plan) -> None:
    """Refuse a plan that keeps the state elsewhere, of an optimizer whose state stays beside the model.

    Raises:
        BadInput: that says which.
    """
    if plan.offload is not Offload.NONE:
        word = "weights that are rounded by chance" if config.precision.by_chance else config.optimizer
        raise BadInput(f"--offload keeps the state of adamw, not of {word}: leave it out")


def without_betas(make: Callable[..., torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """An optimizer that has no moments."""
    return lambda masters, betas, **options: make(masters, **options)


def masters_of(form: GradientSync) -> list[torch.nn.Parameter]:
    """What to update; a rank may have no part, and torch wants one."""
    return [part.master for part in form.parts] or [torch.nn.Parameter(torch.empty(0))]


def _whole_matrices(
    rule: MatrixRule,
    config: TrainConfig,
    plan: Plan,
    form: GradientSync,
    everyone: Communicator,
    options: Mapping[str, Any],
) -> torch.optim.Optimizer:
    """An optimizer that looks at whole matrices."""
    if plan.offload is not Offload.NONE:
        raise BadInput(
            f"what is offloaded is updated element by element, and {config.optimizer} looks at whole matrices: take "
            "--optimizer adamw, or --offload none"
        )
    return WholeMatrices(form.parts, everyone, rule, options)
