"""Experts as a model of their own, since other ranks have replicas of them than of all else.

A form of data parallelism sums gradients over the ranks that hold the same parameters. Those of an expert are fewer. So
the experts are taken out of a model, which uses them as before, and a form of their own is made over what was taken.
"""

from collections.abc import Mapping

from torch import nn

from reference.models.borrowed import Borrowed, lend
from reference.models.moe import Experts


def lift_experts(model: nn.Module) -> Mapping[nn.Module, nn.Module]:
    """Take the experts out of a model, in place.

    Args:
        model: whole, or the stages of a rank.

    Returns:
        For each model, or stage that has some, a module whose parameters are its experts', with their names.
    """
    by_number = getattr(model, "by_number", None)
    stages = [model] if by_number is None else list(by_number.values())
    found = {stage: lifted_from(stage) for stage in stages}
    return {stage: lifted for stage, lifted in found.items() if lifted is not None}


def lifted_from(stage: nn.Module) -> nn.Module | None:
    """The experts of one stage, in modules that are called as those around them were; None without any."""
    named = {name: module for name, module in stage.named_modules() if isinstance(module, Experts)}
    root = nn.ModuleDict()
    for name, experts in named.items():
        *path, last = name.split(".")
        place = root
        for step in path:
            if step not in place:
                place[step] = nn.ModuleDict()
            place = place[step]
        place[last] = experts
        lend(stage, experts, Borrowed(experts))
    return root if named else None
